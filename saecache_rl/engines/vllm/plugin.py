"""The entry point `vllm.general_plugins`: puts an agent in charge of eviction in every vLLM engine of this process.

Off unless SAECACHE_AGENT names an agent of conf/agent. SAECACHE_WINDOW is the number of requests between two of its
decisions (100), SAECACHE_SEED its seed (0). vLLM runs this in each of its processes, some of them more than once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from saecache_rl.configured import by_name, make
from saecache_rl.engines.vllm.labels import Template, template_of
from saecache_rl.engines.vllm.serving import Choice, logger
from saecache_rl.errors import InputError

AGENT, WINDOW, SEED = "SAECACHE_AGENT", "SAECACHE_WINDOW", "SAECACHE_SEED"

#: vLLM's configuration of the model of the scheduler that is being made.
model_config: Any = None


def register() -> None:
    """Put the agent that the environment names in force; nothing without one.

    Raises:
        InputError: an unknown agent, or a vLLM whose methods are not as expected.
    """
    if not os.environ.get(AGENT):
        return
    from saecache_rl.engines.vllm.signatures import check_signatures

    check_signatures()
    _settings(os.environ)
    from vllm.v1.core.sched import async_scheduler, scheduler

    from saecache_rl.engines.vllm.manager import PolicyKVCacheManager
    from saecache_rl.engines.vllm.scheduler import PolicyAsyncScheduler, PolicyScheduler

    # Whatever scheduler is chosen makes its manager by this name; the two of vLLM also tell it their configuration.
    scheduler.KVCacheManager = PolicyKVCacheManager
    scheduler.Scheduler = PolicyScheduler
    async_scheduler.AsyncScheduler = PolicyAsyncScheduler


def _whole(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"{name}={text}: give a whole number of at least {least}")
    return int(text)


def _settings(environment: Mapping[str, str]) -> tuple[Any, int, int]:
    """Agent's configuration, window and seed."""
    name = environment.get(AGENT, "")
    if not name:
        raise InputError(f"no agent: set {AGENT} to a name of conf/agent, for instance {AGENT}=saecache")
    try:
        settings = by_name("agent", name)
    except InputError as error:
        raise InputError(f"{AGENT}={name}: {error}") from None
    return settings, _whole(environment, WINDOW, 100, 1), _whole(environment, SEED, 0, 0)


def choice_of_environment(environment: Mapping[str, str] | None = None) -> Choice:
    """Make what the variables SAECACHE_… name.

    Raises:
        InputError: one of them is not usable.
    """
    settings, window, seed = _settings(os.environ if environment is None else environment)
    agent = make("agent", settings)
    if agent.policy.oracle:
        raise InputError(f"{AGENT}={agent.name}: it needs later requests, which a live engine does not have")
    agent.reset(seed)
    return Choice(agent=agent, window=window, template=_template())


def _template() -> Template | None:
    """The chat template's special tokens of the model that is being served; None if they are not known."""
    if model_config is None or model_config.skip_tokenizer_init:
        return None
    try:
        from vllm.tokenizers.registry import cached_tokenizer_from_config

        return template_of(cached_tokenizer_from_config(model_config))
    except Exception as error:
        logger.warning("saecache_rl: no tokenizer to read the chat template's tokens from (%s)", error)
        return None
