"""All that is measured of a workload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from saecache_rl.characterization import divergence, gaps, reuse
from saecache_rl.engines.capacity import Ceiling, ceiling
from saecache_rl.workloads.sessions import Sessions, find_sessions
from saecache_rl.workloads.trace import Trace


@dataclass(frozen=True)
class Measured:
    """A workload's figures.

    turns: (S,) requests of each session. The others: see their modules.
    """

    name: str
    block_size: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    source: str
    reuse: reuse.Reuse
    gaps: list[gaps.Gaps]
    divergence: divergence.Divergence
    ceiling: Ceiling
    turns: npt.NDArray[np.int64]
    notes: dict[str, str]

    @property
    def title(self) -> str:
        """The workload in one line."""
        return (
            f"{self.name}: {self.requests:,} requests, {self.prompt_tokens:,} prompt tokens, at most "
            f"{100 * self.ceiling.token_hit_ratio:.1f} % of them from a cache"
        )


def sessions_of(trace: Trace, source: str) -> Sessions:
    """Return the sessions as the option says; "auto" takes the trace's own ids where it has any."""
    if source == "auto":
        source = "hint" if (trace.session >= 0).any() else "lineage"
    return find_sessions(trace, source)


def measure(trace: Trace, source: str) -> Measured:
    """Measure a trace; `source` is hint, lineage or auto.

    Raises:
        InputError: hint, and the trace names no sessions.
    """
    sessions = sessions_of(trace, source)
    return Measured(
        name=trace.name,
        block_size=trace.block_size,
        requests=trace.num_requests,
        prompt_tokens=int(trace.prompt_tokens.sum(dtype=np.int64)),
        output_tokens=int(trace.output_tokens.sum(dtype=np.int64)),
        seconds=float(trace.arrival[-1]),
        source=sessions.source,
        reuse=reuse.measure(trace, sessions),
        gaps=gaps.measure(trace, sessions),
        divergence=divergence.measure(trace, sessions),
        ceiling=ceiling(trace),
        turns=np.bincount(sessions.session).astype(np.int64),
        notes={key: str(value) for key, value in trace.notes.items()},
    )
