"""How large a cache may usefully be: the ceiling of an infinite one, and capacities chosen from the trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.compiled import compiled
from saecache_rl.engines.simulator import Simulator
from saecache_rl.workloads.trace import Trace

#: A capacity leaves room beside the largest request.
HEADROOM = 1.3
#: `auto`: LRU reaches this share of the ceiling.
AUTO_SHARE = 0.6
#: `sweep` ends where LRU is this near to its hit ratio in an infinite cache.
SWEEP_DISTANCE = 0.005
#: `sweep` starts at this share of its end.
SWEEP_START = 0.05


@dataclass(frozen=True)
class Ceiling:
    """What an infinite cache hits; no policy at any capacity hits more.

    Attributes:
        hit_blocks: (R,) by request.
        hit_tokens: (R,) likewise.
        token_hit_ratio, block_hit_ratio: over the whole trace.
    """

    hit_blocks: npt.NDArray[np.int32]
    hit_tokens: npt.NDArray[np.int64]
    token_hit_ratio: float
    block_hit_ratio: float


@compiled(
    types.void(
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64,
        types.uint8[::1],
        types.int32[::1],
    )
)
def _infinite(  # type: ignore[no-untyped-def]
    prompt_tokens, prompt_start, prompt_blocks, generated_start, generated_blocks, block_size, seen, hits
):
    for r in range(len(prompt_tokens)):
        matchable = (prompt_tokens[r] - 1) // block_size
        n = 0
        while n < matchable and seen[prompt_blocks[prompt_start[r] + n]] == 1:
            n += 1
        hits[r] = n
        for at in range(prompt_start[r], prompt_start[r + 1]):
            seen[prompt_blocks[at]] = 1
        for at in range(generated_start[r], generated_start[r + 1]):
            seen[generated_blocks[at]] = 1


def ceiling(trace: Trace) -> Ceiling:
    """Serve the trace from an infinite cache."""
    hits = np.zeros(trace.num_requests, np.int32)
    _infinite(
        trace.prompt_tokens,
        trace.prompt_start,
        trace.prompt_blocks,
        trace.generated_start,
        trace.generated_blocks,
        trace.block_size,
        np.zeros(trace.num_identities, np.uint8),
        hits,
    )
    tokens = hits.astype(np.int64) * trace.block_size
    matchable = int(trace.matchable_blocks.sum(dtype=np.int64))
    return Ceiling(
        hits,
        tokens,
        float(tokens.sum() / trace.prompt_tokens.sum(dtype=np.int64)),
        float(hits.sum(dtype=np.int64) / matchable) if matchable else 0.0,
    )


def smallest_capacity(trace: Trace) -> int:
    """Blocks of the largest request: below this it cannot run."""
    return int(trace.request_blocks.max())


class _LRUCurve:
    """LRU's token hit ratio by capacity, each capacity simulated once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.least = math.ceil(HEADROOM * smallest_capacity(trace))
        # Every block of every request: nothing is ever evicted, spare copies included.
        self.most = max(self.least, len(trace.prompt_blocks) + len(trace.generated_blocks) + smallest_capacity(trace))
        self.known: dict[int, float] = {}

    def ratio(self, num_blocks: int) -> float:
        if num_blocks not in self.known:
            simulator = Simulator(self.trace, LRU(), num_blocks)
            self.known[num_blocks] = simulator.serve(self.trace.num_requests).token_hit_ratio
        return self.known[num_blocks]

    def smallest(self, goal: float) -> int:
        """The smallest capacity, at least `least`, at which LRU reaches `goal`; doubling, then halving the interval."""
        low, high = self.least, self.least
        while self.ratio(high) < goal and high < self.most:
            low, high = high, min(2 * high, self.most)
        while high - low > 1 and high > self.least:
            middle = (low + high) // 2
            if self.ratio(middle) >= goal:
                high = middle
            else:
                low = middle
        return high


@lru_cache(maxsize=8)
def _curve(digest: str) -> dict[str, int]:
    return {}


def auto_capacity(trace: Trace) -> int:
    """The smallest capacity at which LRU reaches 60 % of the ceiling, at least 1.3 times the largest request."""
    found = _curve(trace.digest)
    if "auto" not in found:
        found["auto"] = _LRUCurve(trace).smallest(AUTO_SHARE * ceiling(trace).token_hit_ratio)
    return found["auto"]


def largest_useful_capacity(trace: Trace) -> int:
    """C_max: the smallest capacity at which LRU is within 0.5 points of its hit ratio in an infinite cache."""
    found = _curve(trace.digest)
    if "largest" not in found:
        found["largest"] = _LRUCurve(trace).smallest(ceiling(trace).token_hit_ratio - SWEEP_DISTANCE)
    return found["largest"]


def sweep_capacities(trace: Trace, points: int = 20) -> list[int]:
    """Geometric capacities from max(5 % of C_max, 1.3 times the largest request) to C_max; fewer if some coincide."""
    largest = largest_useful_capacity(trace)
    least = min(max(math.ceil(SWEEP_START * largest), math.ceil(HEADROOM * smallest_capacity(trace))), largest)
    return sorted({int(c) for c in np.round(np.geomspace(least, largest, points))})
