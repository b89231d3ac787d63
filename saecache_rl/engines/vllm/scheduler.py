"""vLLM's schedulers with our manager: what the plug-in puts in force, and what `scheduler_cls` can name.

--scheduler-cls saecache_rl.engines.vllm.scheduler.PolicyAsyncScheduler     (the usual, asynchronous scheduling)
--scheduler-cls saecache_rl.engines.vllm.scheduler.PolicyScheduler          (synchronous)
"""

from __future__ import annotations

from typing import Any

from saecache_rl.engines.vllm.needs import need_vllm

need_vllm()

from vllm.v1.core.sched import scheduler as vllm_scheduler  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

from saecache_rl.engines.vllm import plugin  # noqa: E402
from saecache_rl.engines.vllm.manager import PolicyKVCacheManager  # noqa: E402
from saecache_rl.engines.vllm.signatures import check_signatures  # noqa: E402


class _WithPolicy:
    """Makes the scheduler's manager ours, and lets it know the engine's configuration."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_signatures()
        own = vllm_scheduler.KVCacheManager
        vllm_scheduler.KVCacheManager = PolicyKVCacheManager
        plugin.model_config = vllm_config.model_config
        try:
            super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        finally:
            vllm_scheduler.KVCacheManager = own
            plugin.model_config = None


class PolicyScheduler(_WithPolicy, Scheduler):  # type: ignore[misc]
    """vLLM's `Scheduler` over a `PolicyKVCacheManager`."""


class PolicyAsyncScheduler(_WithPolicy, AsyncScheduler):  # type: ignore[misc]
    """vLLM's `AsyncScheduler` over a `PolicyKVCacheManager`."""
