"""The choice of victims in a lazy class: exact for any score, yet few leaves are scored.

A costly score changes with time, and mostly little. So each leaf has a *floor*: the lowest that its score will be until
some time, which the policy's score gives when ``pool.horizon`` is set. The heap orders leaves by floor; a request that
needs room scores leaves from the lowest floor on until the next floor lies above the best score found. The floors are
made anew when their time is over, and for how long they are made adapts: about half as many scores between as leaves.

The policy may say at release which blocks of a chain will have equal scores, by equal keys that are GROUPED or less, so
that a chain is evicted run by run. (A leaf's key becomes its floor: a score, which must be above GROUPED.)
"""

from __future__ import annotations

import math

from numba import types

from saecache_rl.cache.heap import append, push, rebuild, remove, sift_down, sift_up
from saecache_rl.cache.layout import CACHE, FLOORS, INT, SCORE, SLOTS
from saecache_rl.cache.pool import evict
from saecache_rl.compiled import kernel

SCORER = types.FunctionType(SCORE)
SCORES = types.float64[::1]

#: Seconds for which floors are made at first, and bounds.
SPAN, LEAST_SPAN, MOST_SPAN = 1.0, 1e-3, 1e9
#: Keys up to this say which blocks of a chain have equal scores.
GROUPED = -2.0
#: A floor gives way a little, so that rounding never lifts it above a score.
SLACK = 1.0 - 1e-12


@kernel(types.void(CACHE, SCORER, INT, SLOTS, SCORES))
def _set_floors(cache, score, c, slots, scores):  # type: ignore[no-untyped-def]
    """Give every leaf of a lazy class its floor, and order the heap by it."""
    heap = cache.heaps[c]
    pool = cache.pool[0]
    size = heap.size
    if pool.span == 0.0:
        pool.span = SPAN
    elif pool.looked > size:
        pool.span = max(pool.span * 0.5, LEAST_SPAN)
    elif 4 * pool.looked < size:
        pool.span = min(pool.span * 2.0, MOST_SPAN)
    pool.looked = 0
    for i in range(size):
        slots[i] = cache.arena[heap.start + i]
    pool.horizon = pool.span
    score(cache, slots, size, scores)
    pool.horizon = 0.0
    for i in range(size):
        cache.blocks[slots[i]].key = scores[i]
    rebuild(cache.blocks, cache.heaps, cache.arena, c)
    heap.sampled = FLOORS
    heap.dirty = 0
    heap.now = pool.now + pool.span
    heap.version = pool.version


@kernel(types.boolean(CACHE, SLOTS, SCORES, INT, INT), forceinline=True)
def _lower(cache, slots, scores, a, b):  # type: ignore[no-untyped-def]
    """Whether the leaf at place a goes before that at b: lower score, then deeper, then older."""
    if scores[a] != scores[b]:
        return scores[a] < scores[b]
    x = cache.blocks[slots[a]]
    y = cache.blocks[slots[b]]
    return x.offset > y.offset or (x.offset == y.offset and x.access < y.access)


@kernel(INT(CACHE, SCORER, INT, INT, SLOTS, INT, SLOTS, SCORES))
def take_lazy(cache, score, c, need, taken, start, slots, scores):  # type: ignore[no-untyped-def]
    """Victims of a lazy class that has all candidates; fewer than needed once another class gets one."""
    blocks, heaps, arena = cache.blocks, cache.heaps, cache.arena
    heap = heaps[c]
    pool = cache.pool[0]
    if heap.sampled != FLOORS or heap.version != pool.version or pool.now > heap.now:
        _set_floors(cache, score, c, slots, scores)
    count = start
    scored = 0  # leaves that are scored stand in ``slots[:scored]``, out of the heap
    best = -1
    other = -1
    while count < need and other < 0:
        while heap.size > 0:
            slot = arena[heap.start]
            key = blocks[slot].key
            if key == -math.inf:
                slots[scored] = slot
                pool.horizon = heap.now - pool.now
                score(cache, slots[scored:], 1, scores[scored:])
                pool.horizon = 0.0
                blocks[slot].key = scores[scored]
                sift_down(blocks, arena, heap.start, heap.size, 0)
                continue
            if best >= 0 and key > scores[best]:
                break
            remove(blocks, heaps, arena, slot)
            slots[scored] = slot
            score(cache, slots[scored:], 1, scores[scored:])
            pool.looked += 1
            if best < 0 or _lower(cache, slots, scores, scored, best):
                best = scored
            scored += 1
        if best < 0:
            break
        # The chain goes on while it scores below everything else.
        limit = blocks[arena[heap.start]].key if heap.size > 0 else math.inf
        for i in range(scored):
            if i != best:
                limit = min(limit, scores[i])
        group = math.nan
        while True:
            taken[count] = slots[best]
            count += 1
            parent = evict(cache, slots[best])
            if parent < 0 or blocks[parent].cls != c:
                other = parent
                scored -= 1
                slots[best] = slots[scored]
                scores[best] = scores[scored]
                break
            slots[best] = parent
            key = blocks[parent].key
            if key != group or not -math.inf < key <= GROUPED:
                group = key
                score(cache, slots[best:], 1, scores[best:])
            blocks[parent].key = -math.inf
            if count == need or not scores[best] < limit:
                break
        best = -1
        for i in range(scored):
            if best < 0 or _lower(cache, slots, scores, i, best):
                best = i
    for i in range(scored):
        append(blocks, heaps, arena, slots[i])
        sift_up(blocks, arena, heap.start, heap.size - 1)
    if other >= 0:
        push(blocks, heaps, arena, other)
    return count
