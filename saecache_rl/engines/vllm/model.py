"""A vLLM engine in this process: started for a replay, emptied between two, closed without a trace.

With a policy its scheduler's block pool is ours; without one nothing of ours is in it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saecache_rl.cache.policy import Policy
from saecache_rl.engines.vllm.live_settings import TINY, LiveSettings
from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.serving import Choice, Serving
from saecache_rl.errors import InputError

#: Always so: the engine is stepped from here, and its pool is read from here.
_IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
_WARM_UP_TOKENS = (40, 200, 40)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _scheduler(choice: Choice) -> type[Any]:
    """A class of vLLM's (synchronous) scheduler over our manager, ruled by `choice`."""
    from functools import partial

    from vllm.v1.core.sched import scheduler

    from saecache_rl.engines.vllm.manager import PolicyKVCacheManager
    from saecache_rl.engines.vllm.signatures import check_signatures

    class DrivenScheduler(scheduler.Scheduler):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            check_signatures()
            own = scheduler.KVCacheManager
            scheduler.KVCacheManager = partial(PolicyKVCacheManager, choice=choice)
            try:
                super().__init__(*args, **kwargs)
            finally:
                scheduler.KVCacheManager = own

    return DrivenScheduler


class LiveModel:
    """A started vLLM engine.

    Attributes:
        engine: vLLM's `LLMEngine`.
        settings, num_blocks, max_model_len: what it was started with.
        vocabulary: number of token ids that the model knows.
    """

    def __init__(self, settings: LiveSettings, num_blocks: int, max_model_len: int, choice: Choice | None) -> None:
        """Start it and serve a few requests, so that a replay does not pay for what is made on first use.

        Args:
            settings: of the engine.
            num_blocks: capacity, vLLM's null block not counted.
            max_model_len: tokens of the longest request that will come.
            choice: what rules the block pool; None: vLLM as it is.

        Raises:
            InputError: vLLM is not installed, or refuses the options.
        """
        need_vllm()
        if choice is None and os.environ.get("SAECACHE_AGENT"):
            raise InputError("SAECACHE_AGENT is set, but this engine runs without the plug-in; unset it")
        self.settings, self.num_blocks, self.max_model_len = settings, num_blocks, max_model_len
        self._evicted = 0
        for name, value in (*settings.environment.items(), *_DEFAULTS.items()):
            os.environ.setdefault(name, str(value))
        model = settings.model
        if model == TINY:
            from saecache_rl.engines.vllm.tiny_model import tiny_model

            model = str(tiny_model())
        elif model.startswith("~"):
            model = str(Path(model).expanduser())
        with _environment(_IN_PROCESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vLLM and torch warn of themselves while they start
            self.engine: Any = self._start(model, choice)
        core = self.engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self.vocabulary = int(self.engine.model_config.get_vocab_size())
        if choice is None:
            self._count_evictions()
        self._warm_up()

    def _start(self, model: str, choice: Choice | None) -> Any:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from saecache_rl.engines.vllm.forced import ForcedReply

        settings = self.settings
        if threads := os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        alone = settings.loop == "one_by_one"
        arguments: dict[str, Any] = {
            "model": model,
            "skip_tokenizer_init": True,
            "dtype": settings.dtype,
            "enforce_eager": settings.enforce_eager,
            "block_size": settings.block_size,
            "num_gpu_blocks_override": self.num_blocks + 1,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": max(self.max_model_len, 2048),
            "max_num_seqs": 1 if alone else settings.max_num_seqs,
            "enable_prefix_caching": True,
            "async_scheduling": False,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "seed": 0,
            "logits_processors": [ForcedReply],
            **settings.engine_args,
        }
        if choice is not None:
            arguments["scheduler_cls"] = _scheduler(choice)
        try:
            return LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (TypeError, ValueError, OSError) as error:
            raise InputError(f"vLLM refuses engine {settings.name}: {' '.join(str(error).split())[:300]}") from error

    def _count_evictions(self) -> None:
        """Count the evictions of vLLM's own pool, which it only reports as events."""
        pool = self.pool
        own = pool._maybe_evict_cached_block

        def counted(block: Any) -> bool:
            evicted = bool(own(block))
            self._evicted += evicted
            return evicted

        pool._maybe_evict_cached_block = counted

    def _warm_up(self) -> None:
        from vllm import SamplingParams

        for number, tokens in enumerate(_WARM_UP_TOKENS):
            count = min(tokens, self.max_model_len - 2)
            prompt = np.arange(count) % (self.vocabulary - 1)
            params = SamplingParams(max_tokens=2, ignore_eos=True, detokenize=False, temperature=0.0)
            self.engine.add_request(f"warm-up-{number}", {"prompt_token_ids": prompt.tolist()}, params)
            while self.engine.has_unfinished_requests():
                self.engine.step()

    @property
    def pool(self) -> Any:
        """The block pool in use."""
        return self._scheduler.kv_cache_manager.block_pool

    @property
    def evictions(self) -> int:
        """Blocks that an engine without a policy has evicted."""
        return self._evicted

    @property
    def preemptions(self) -> int:
        """Requests that now wait to go on after they were preempted, or run having been."""
        return sum(r.num_preemptions for r in self._scheduler.requests.values())

    def empty(self) -> None:
        """End whatever runs, and forget every block."""
        running = [request.request_id for request in self._scheduler.requests.values()]
        if running:
            self.engine.abort_request(running, internal=True)
            while self.engine.has_unfinished_requests():
                self.engine.step()
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM could not reset its prefix cache: blocks are still referenced")
        self._evicted = 0

    def rule(self, choice: Choice) -> Serving:
        """Empty the engine and begin anew under `choice`, another policy or the same."""
        self.empty()
        serving = Serving(choice, self.num_blocks, self.settings.block_size)
        pool = self.pool
        pool.serving = serving
        serving.live.reset([block.block_id for block in pool.free_block_queue.get_all_free_blocks()])
        return serving

    def close(self) -> None:
        """Shut the engine down; no process, thread of ours or memory of the device is left."""
        engine, self.engine, self._scheduler = self.engine, None, None
        if engine is not None:
            engine.engine_core.shutdown()
            del engine
            gc.collect()


class Driven:
    """The agent of an engine that is driven from outside: parameters come with each window, so it decides nothing."""

    name = "driven"

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def act(self, stats: Any) -> Any:
        """The policy's start values, until others are given."""
        return self.policy.space().start()

    def observe(self, stats: Any, reward: float) -> None:
        """Do nothing."""
