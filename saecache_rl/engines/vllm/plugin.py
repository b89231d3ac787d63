"""The entry point `vllm.general_plugins`: puts an agent in charge of eviction in every vLLM engine of this process.

Off unless SAECACHE_AGENT names an agent of conf/agent. SAECACHE_WINDOW is the number of requests between two of its
decisions (100), SAECACHE_SEED its seed (0), SAECACHE_CHECKPOINT the file that keeps what it has learned (none),
SAECACHE_PREDICTOR the file of a trained predictor: will a session go on? (none: no). vLLM runs this in each of its
processes, some of them more than once, so nothing else is imported before it is known to be wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saecache_rl.errors import InputError

if TYPE_CHECKING:
    from saecache_rl.engines.vllm.labels import Template
    from saecache_rl.engines.vllm.serving import Choice, Served

AGENT, WINDOW, SEED, CHECKPOINT = "SAECACHE_AGENT", "SAECACHE_WINDOW", "SAECACHE_SEED", "SAECACHE_CHECKPOINT"
PREDICTOR = "SAECACHE_PREDICTOR"

#: vLLM's configuration of the scheduler that is being made.
vllm_config: Any = None


def register() -> None:
    """Put the agent that the environment names in force; nothing without one.

    Raises:
        InputError: an unknown agent or a setting that can't be, or a vLLM whose methods are not as expected.
    """
    if not os.environ.get(AGENT):
        return
    from saecache_rl.engines.vllm.signatures import check_signatures

    check_signatures()
    _settings(os.environ)
    _predict_in_workers(os.environ.get(PREDICTOR))
    from vllm.v1.core.sched import async_scheduler, scheduler

    from saecache_rl.engines.vllm.manager import PolicyKVCacheManager
    from saecache_rl.engines.vllm.metrics import install
    from saecache_rl.engines.vllm.scheduler import PolicyAsyncScheduler, PolicyScheduler

    # Whatever scheduler is chosen makes its manager by this name; the two of vLLM also tell it their configuration.
    scheduler.KVCacheManager = PolicyKVCacheManager
    scheduler.Scheduler = PolicyScheduler
    async_scheduler.AsyncScheduler = PolicyAsyncScheduler
    install()


def _predict_in_workers(path: str | None) -> None:
    """Let the workers run a predictor that looks at hidden states; one that does not runs with the scheduler."""
    if not path:
        return
    from saecache_rl.engines.vllm.continuation import load_predictor
    from saecache_rl.predictor.network import Network

    found = load_predictor(path)
    if isinstance(found, Network):
        from saecache_rl.engines.vllm.hidden import install

        install(found, path)


class _Settings(NamedTuple):
    agent: Mapping[str, Any]
    window: int
    seed: int
    checkpoint: Path | None


def _whole(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"{name}={text}: give a whole number of at least {least}")
    return int(text)


def _settings(environment: Mapping[str, str]) -> _Settings:
    from saecache_rl.configured import by_name
    from saecache_rl.engines.vllm.agent_file import check_path

    name = environment.get(AGENT, "")
    if not name:
        raise InputError(f"no agent: set {AGENT} to a name of conf/agent, for instance {AGENT}=saecache")
    try:
        agent = by_name("agent", name)
    except InputError as error:
        raise InputError(f"{AGENT}={name}: {error}") from None
    file = environment.get(CHECKPOINT)
    try:
        checkpoint = check_path(file) if file else None
    except InputError as error:
        raise InputError(f"{CHECKPOINT}={file}: {error}") from None
    return _Settings(agent, _whole(environment, WINDOW, 100, 1), _whole(environment, SEED, 0, 0), checkpoint)


def choice_of_environment(environment: Mapping[str, str] | None = None) -> Choice:
    """Make what the variables SAECACHE_… name.

    Raises:
        InputError: one of them is not usable.
    """
    from saecache_rl.configured import make
    from saecache_rl.engines.vllm.agent_file import AgentFile
    from saecache_rl.engines.vllm.serving import Choice

    environment = os.environ if environment is None else environment
    settings = _settings(environment)
    agent = make("agent", settings.agent)
    if agent.policy.oracle:
        raise InputError(f"{AGENT}={agent.name}: it needs later requests, which a live engine does not have")
    file = None
    if settings.checkpoint is None:
        agent.reset(settings.seed)
    else:
        file = AgentFile(_of_this_engine(settings.checkpoint), agent)
        file.restore(settings.seed)
    predictor = _predictor(environment.get(PREDICTOR))
    return Choice(agent=agent, window=settings.window, predictor=predictor, template=_template(), file=file)


def _predictor(path: str | None) -> Callable[[Served], float] | None:
    if not path:
        return None
    from saecache_rl.engines.vllm.continuation import check_hidden_size, load_predictor, predictor_of
    from saecache_rl.predictor.network import Network

    found = load_predictor(path)
    if isinstance(found, Network) and vllm_config is not None:
        check_hidden_size(found, vllm_config.model_config, path)
    return predictor_of(found)


def _of_this_engine(path: Path) -> Path:
    """`path`; with the engine's number behind it for the second and later ones that serve one model side by side."""
    rank = 0 if vllm_config is None else int(vllm_config.parallel_config.data_parallel_index)
    return path.with_name(f"{path.name}.{rank}") if rank else path


def _template() -> Template | None:
    """The chat template's special tokens of the model that is being served; None if they are not known."""
    if vllm_config is None or vllm_config.model_config.skip_tokenizer_init:
        return None
    from saecache_rl.engines.vllm.labels import template_of
    from saecache_rl.engines.vllm.serving import logger

    try:
        from vllm.tokenizers.registry import cached_tokenizer_from_config

        return template_of(cached_tokenizer_from_config(vllm_config.model_config))
    except Exception as error:
        logger.warning("saecache_rl: no tokenizer to read the chat template's tokens from (%s)", error)
        return None
