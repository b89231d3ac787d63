"""`saecache_*` on vLLM's own /metrics: the front end's side, which turns an engine's reports into Prometheus metrics.

The scheduler, and the policy with it, lives in the engine's process; /metrics is answered by the API server's. What is
told goes with the `SchedulerStats` that vLLM sends with each step's outputs, in memory or over its own socket, whether
the engine's process was spawned or forked, is one of several or runs on another machine, and whichever of several API
servers gets it. That type has a fixed set of fields, of which a front end without this module must not trip over one
that it does not know: the report is a key, with the number 0, of `num_kv_fetch_reqs_by_stage`, a dictionary by name of
which vLLM reads the names that it knows. An engine that has just begun takes one step without requests, as after the
last request of a burst, so that its report is there before the first request (`scheduler`).

Other ways: vLLM's entry point for stat loggers is used by its asynchronous engine alone, and switches statistics on for
every server in whose environment this package is installed. Prometheus's files for several processes must be switched
on before its client is first imported, and then hold for vLLM's metrics too. A file or shared memory of our own would
need a name, an owner and a protocol, and no engine on another machine could use it.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.report import COUNTERS
from saecache_rl.engines.vllm.serving import logger
from saecache_rl.errors import InputError

need_vllm()

from prometheus_client import REGISTRY, Counter, Gauge  # noqa: E402
from vllm.v1.metrics.loggers import AggregateStatLoggerBase, StatLoggerManager  # noqa: E402
from vllm.v1.metrics.stats import SchedulerStats  # noqa: E402

CARRIER = "num_kv_fetch_reqs_by_stage"
PREFIX = "saecache_"
#: What is named in the place of a policy that is left out: vLLM's own order.
VLLM = "vllm"


def attach(stats: SchedulerStats, report: str) -> None:
    """Send a report along with an engine's statistics."""
    getattr(stats, CARRIER)[PREFIX + report] = 0


def detach(stats: SchedulerStats) -> list[str]:
    """Take the reports out of an engine's statistics."""
    carrier = getattr(stats, CARRIER)
    keys = [key for key in carrier if key.startswith(PREFIX)]
    for key in keys:
        del carrier[key]
    return [key.removeprefix(PREFIX) for key in keys]


class PolicyMetrics(AggregateStatLoggerBase):  # type: ignore[misc]
    """Counts and shows what engines report."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        """Make the metrics anew, as vLLM does with its own: the latest engine of a process has them."""
        for collector in list(REGISTRY._collector_to_names):
            if str(getattr(collector, "_name", "")).startswith(PREFIX):
                REGISTRY.unregister(collector)
        self._model = str(vllm_config.model_config.served_model_name)
        common = ["model_name", "engine"]
        self._counters = {
            name: Counter(PREFIX + name, c.text, [*common, c.label] if c.label else common)
            for name, c in COUNTERS.items()
        }

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, text, [*common, *labels], multiprocess_mode="mostrecent")

        self._info = gauge("info", "1 for what rules eviction now, 0 for what did before.", "agent", "policy")
        self._parameter = gauge("parameter", "Parameters in force.", "name")
        self._unreferenced = gauge(
            "unreferenced_blocks", "Cached blocks that no running request has, by queue.", "queue"
        )
        self._failed = False

    def record(self, scheduler_stats: SchedulerStats | None, *args: Any, engine_idx: int = 0, **kwargs: Any) -> None:
        """Show what an engine has sent. Never raises, as vLLM would take that for the engine's end."""
        if scheduler_stats is None:
            return
        try:
            for report in detach(scheduler_stats):
                self._show(json.loads(report), str(engine_idx))
        except Exception as error:
            if not self._failed:
                logger.error("saecache_rl: metrics failed: %r; serving goes on", error, exc_info=error)
            self._failed = True

    def _show(self, report: dict[str, Any], engine: str) -> None:
        agent, in_force = report["agent"], bool(report["in_force"])
        self._info.labels(self._model, engine, agent, report["policy"]).set(in_force)
        if not in_force:
            self._info.labels(self._model, engine, agent, VLLM).set(1)
        for name, value in report.get("parameters", {}).items():
            self._parameter.labels(self._model, engine, name).set(value)
        for name, value in report["unreferenced"].items():
            self._unreferenced.labels(self._model, engine, name).set(value)
        for name, added in report["added"].items():
            for label, count in added.items():
                labels = [label] if COUNTERS[name].label else []
                self._counters[name].labels(self._model, engine, *labels).inc(count)

    def log_engine_initialized(self) -> None:
        """Do nothing: the engine itself says what rules it."""


def install() -> None:
    """Have every front end of this process show what its engines report.

    Raises:
        InputError: vLLM's statistics have no place for reports.
    """
    if CARRIER not in {field.name for field in fields(SchedulerStats)}:
        raise InputError(f"vLLM's SchedulerStats has no {CARRIER}, which saecache_rl sends its metrics with")
    own = StatLoggerManager.__init__
    if own.__module__ == __name__:
        return  # installed before

    def begin(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        own(self, vllm_config, *args, **kwargs)
        # First, so that no other logger sees the reports.
        self.stat_loggers.insert(0, PolicyMetrics(vllm_config, self.engine_indexes))

    StatLoggerManager.__init__ = begin
