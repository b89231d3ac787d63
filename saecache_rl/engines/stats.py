"""What an engine reports of a window of requests. Counted by the engine; nothing here knows a policy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES

#: Bins of a block's relative offset, offset / largest structural offset, clipped to 1.
NUM_OFFSET_BINS = 16
#: The queues whose gaps between turns are modelled, in the order of the gap columns: chat, agentic.
NUM_GAP_KINDS = 2

Counts = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WindowStats:
    """Counts of one window; equal where every column is.

    Attributes:
        window: its number, from 0.
        first_request, requests: which requests it served.
        time: arrival of its last request, seconds; 0 before the first window.
        prompt_tokens, hit_tokens: sums over its requests.
        matchable_blocks, hit_blocks: likewise; hits are matchable blocks in the longest resident leading run.
        evictions: blocks evicted.
        queue_hits: (4,) hit blocks by the `Queue` they were in.
        queue_ghost_misses: (4,) missed blocks that are remembered as evicted, by the queue they were evicted from.
        queue_evictions: (4,) evicted blocks by queue.
        queue_held: (4,) resident blocks by queue, averaged over the window's requests.
        type_accesses, type_hits, type_ghost_misses, type_evictions: (7,) likewise by `TokenType`; an access is a
            matchable block, hit or not.
        offset_accesses, offset_hits: (16,) of structural blocks (hits, and hits + ghost misses), by relative offset.
        gap_count, gap_log_sum, gap_log_square_sum: (2,) of the gaps in seconds between turns of chat and of
            agentic sessions that were completed in this window: number, sum of ln, sum of squared ln. Gaps of
            zero seconds are not counted (they have no logarithm).
        sampled_choices: choices of a victim that looked at a sample of the candidates, not at all of them.
        ttft_ms_mean: mean time to first token, or None where the engine's clock has none.
    """

    window: int
    first_request: int
    requests: int
    time: float
    prompt_tokens: int
    hit_tokens: int
    matchable_blocks: int
    hit_blocks: int
    evictions: int
    queue_hits: Counts
    queue_ghost_misses: Counts
    queue_evictions: Counts
    queue_held: Reals
    type_accesses: Counts
    type_hits: Counts
    type_ghost_misses: Counts
    type_evictions: Counts
    offset_accesses: Counts
    offset_hits: Counts
    gap_count: Counts
    gap_log_sum: Reals
    gap_log_square_sum: Reals
    sampled_choices: int = 0
    ttft_ms_mean: float | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WindowStats):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    @property
    def token_hit_ratio(self) -> float:
        """Hit tokens over prompt tokens; 0 for an empty window."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def block_hit_ratio(self) -> float:
        """Hit blocks over matchable blocks; 0 where there are none."""
        return self.hit_blocks / self.matchable_blocks if self.matchable_blocks else 0.0

    @staticmethod
    def empty() -> WindowStats:
        """The statistics before the first window: nothing served."""
        queues, types = np.zeros(NUM_QUEUES, np.int64), np.zeros(NUM_TOKEN_TYPES, np.int64)
        bins, kinds = np.zeros(NUM_OFFSET_BINS, np.int64), np.zeros(NUM_GAP_KINDS, np.int64)
        return WindowStats(
            window=-1,
            first_request=0,
            requests=0,
            time=0.0,
            prompt_tokens=0,
            hit_tokens=0,
            matchable_blocks=0,
            hit_blocks=0,
            evictions=0,
            queue_hits=queues,
            queue_ghost_misses=queues,
            queue_evictions=queues,
            queue_held=queues.astype(np.float64),
            type_accesses=types,
            type_hits=types,
            type_ghost_misses=types,
            type_evictions=types,
            offset_accesses=bins,
            offset_hits=bins,
            gap_count=kinds,
            gap_log_sum=kinds.astype(np.float64),
            gap_log_square_sum=kinds.astype(np.float64),
        )
