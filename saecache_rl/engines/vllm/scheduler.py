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
from saecache_rl.engines.vllm.continuation import ATTRIBUTE  # noqa: E402
from saecache_rl.engines.vllm.manager import PolicyKVCacheManager  # noqa: E402
from saecache_rl.engines.vllm.metrics import attach, install  # noqa: E402
from saecache_rl.engines.vllm.report import Report  # noqa: E402
from saecache_rl.engines.vllm.serving import logger  # noqa: E402
from saecache_rl.engines.vllm.signatures import check_signatures  # noqa: E402


class _WithPolicy:
    """Makes the scheduler's manager ours, lets it know the engine's configuration, and reports to the front end."""

    kv_cache_manager: PolicyKVCacheManager
    log_stats: bool
    _report: Report | None = None
    _reported: bool = False

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_signatures()
        install()
        own = vllm_scheduler.KVCacheManager
        vllm_scheduler.KVCacheManager = PolicyKVCacheManager
        plugin.vllm_config = vllm_config
        try:
            super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        finally:
            vllm_scheduler.KVCacheManager = own
            plugin.vllm_config = None
        pool = self.kv_cache_manager.block_pool
        if pool.serving is not None and self.log_stats:
            self._report = Report(pool.serving, lambda: pool.in_force)

    def has_finished_requests(self) -> bool:
        """See vLLM; true once more at the beginning, for a step that sends the first report."""
        if self._report is not None and not self._reported:
            return True
        return bool(super().has_finished_requests())  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM."""
        self._reported = True
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM; with what is new of the policy."""
        stats = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        if stats is not None and self._report is not None:
            try:
                report = self._report.take()
                if report is not None:
                    attach(stats, report)
            except Exception as error:
                self._report = None
                logger.error("saecache_rl: the metrics' report failed: %r; there are no more", error, exc_info=error)
        return stats

    def shutdown(self) -> None:
        """See vLLM."""
        self.kv_cache_manager.close()
        super().shutdown()  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """See vLLM; what the worker predicts arrives before the requests of the step can end."""
        said = getattr(model_runner_output, ATTRIBUTE, None)
        if said and self.kv_cache_manager.serving is not None:
            self.kv_cache_manager.serving.predicted(said)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]


class PolicyScheduler(_WithPolicy, Scheduler):  # type: ignore[misc]
    """vLLM's `Scheduler` over a `PolicyKVCacheManager`."""


class PolicyAsyncScheduler(_WithPolicy, AsyncScheduler):  # type: ignore[misc]
    """vLLM's `AsyncScheduler` over a `PolicyKVCacheManager`."""
