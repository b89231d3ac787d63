"""Segmented LRU with several segments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.heap import reclass
from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.policies.columns import column, is_new
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.errors import InputError

MOST = 16
# cache.ints: how many segments, number of the latest move, then each segment's size and ends, then columns.
SEGMENTS, STAMP, SIZE, NEWEST, OLDEST = 0, 1, 2, 2 + MOST, 2 + 2 * MOST
HEAD = 2 + 3 * MOST
SEGMENT, MOVED, OLDER, NEWER = 0, 1, 2, 3  # columns: its segment + 1 (0: none); when it got there; its neighbours


@kernel(types.void(CACHE, INT))
def leave(cache, slot):  # type: ignore[no-untyped-def]
    """Take a slot out of its segment."""
    ints = cache.ints
    segment = column(cache, HEAD, SEGMENT)
    older, newer = column(cache, HEAD, OLDER), column(cache, HEAD, NEWER)
    if segment[slot] == 0:
        return
    s = segment[slot] - 1
    if newer[slot] >= 0:
        older[newer[slot]] = older[slot]
    else:
        ints[NEWEST + s] = older[slot]
    if older[slot] >= 0:
        newer[older[slot]] = newer[slot]
    else:
        ints[OLDEST + s] = newer[slot]
    ints[SIZE + s] -= 1
    segment[slot] = 0


@kernel(types.void(CACHE, INT, INT))
def put(cache, slot, s):  # type: ignore[no-untyped-def]
    """Make a slot the most recent of segment `s`."""
    leave(cache, slot)
    ints = cache.ints
    older, newer = column(cache, HEAD, OLDER), column(cache, HEAD, NEWER)
    column(cache, HEAD, SEGMENT)[slot] = s + 1
    ints[STAMP] += 1
    column(cache, HEAD, MOVED)[slot] = ints[STAMP]
    newer[slot] = -1
    older[slot] = ints[NEWEST + s]
    if ints[NEWEST + s] >= 0:
        newer[ints[NEWEST + s]] = slot
    else:
        ints[OLDEST + s] = slot
    ints[NEWEST + s] = slot
    ints[SIZE + s] += 1


@kernel(types.void(CACHE))
def cool(cache):  # type: ignore[no-untyped-def]
    """Segments above the lowest that are too large give their least recent to the one below."""
    ints = cache.ints
    segments = ints[SEGMENTS]
    room = len(cache.blocks) // segments
    for s in range(segments - 1, 0, -1):
        while ints[SIZE + s] > room:
            slot = ints[OLDEST + s]
            put(cache, slot, s - 1)
            if cache.blocks[slot].cls < segments:  # else, live, it is in a hint's class
                reclass(cache, slot, s - 1, np.float64(ints[STAMP]))


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """What is hit goes one segment up, the first block of the chain as the most recent."""
    segment = column(cache, HEAD, SEGMENT)
    top = cache.ints[SEGMENTS] - 1
    for i in range(hits - 1, -1, -1):
        if segment[chain[i]] > 0:
            put(cache, chain[i], min(segment[chain[i]], top))
    cool(cache)


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """New blocks go to the lowest segment; class and key are the segment and the order in it."""
    segment, moved = column(cache, HEAD, SEGMENT), column(cache, HEAD, MOVED)
    for i in range(size - 1, -1, -1):
        slot = chain[i]
        block = cache.blocks[slot]
        if is_new(block, segment[slot]):
            put(cache, slot, 0)
        block.cls = segment[slot] - 1
        block.key = moved[slot]


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """A slot without a block is in no segment."""
    for i in range(size):
        leave(cache, victims[i])


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """The lowest segment first."""
    for i in range(size):
        scores[i] = cache.blocks[slots[i]].cls


class SLRU(Policy):
    """Segmented LRU (Karedla, Love and Wherry, Caching strategies to improve disk system performance, 1994).

    New blocks enter the lowest segment, a hit moves a block to the recent end of the next, and a segment above the
    lowest that holds more than its share gives its least recent block to the recent end of the one below. The victim is
    the least recent of the lowest segment. Four segments of a quarter each, as in libCacheSim and in Huang et al. (An
    analysis of Facebook photo caching, SOSP 2013); with two it is Karedla's.

    What the pool changes: a request's hits all move up before any segment is cut to its share, the blocks of a request
    following each other with the deepest as the least recent; a segment's least recent block that is no leaf waits for
    those behind it; where no leaf is in the lowest segment the next gives the victim. Each segment is bounded but for
    the lowest, which has what the others leave free.
    """

    name = "slru"

    def __init__(self, segments: int = 4) -> None:
        """Choose the number of segments.

        Raises:
            InputError: fewer than 2, or more than 16.
        """
        if not 2 <= segments <= MOST:
            raise InputError(f"policy slru: segments is {segments}; 2 to {MOST} are possible")
        self.segments = segments

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_access=on_access, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[int, ...]:
        """One for each segment, ordered by when a block got there."""
        return (True,) * self.segments

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The segments, and each slot's place."""
        ints = np.zeros(HEAD + 4 * num_blocks, np.int64)
        ints[SEGMENTS] = self.segments
        ints[NEWEST:HEAD] = -1
        return np.zeros(0, np.float64), ints
