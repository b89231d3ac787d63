"""The choice of victims: the lowest-scored candidates of a pool, whatever the policy.

A request that needs room scores the heads of the ordered classes, and each leaf of the others, once; then it
evicts from the lowest, going down a chain while the parent is the next victim anyway.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from saecache_rl.cache.generator import next_state
from saecache_rl.cache.heap import append, precedes, push, rebuild, remove, replace_head, sift_up
from saecache_rl.cache.layout import CACHE, FLOORS, INT, LAZY, ON_EVICT, SLOTS
from saecache_rl.cache.lazy import SCORER, SCORES, take_lazy
from saecache_rl.cache.pool import evict, take_free
from saecache_rl.compiled import kernel

#: Unordered classes with more candidates are sampled.
EXACT_LIMIT = 4096
#: Candidates looked at when sampling.
SAMPLE = 64


@kernel(types.void(CACHE, SCORER, INT, SLOTS, SCORES))
def _rescore(cache, score, c, slots, scores):  # type: ignore[no-untyped-def]
    """Score every candidate of an unordered class and order its heap by it; or look at a sample of a large one."""
    heap = cache.heaps[c]
    blocks = cache.blocks
    size = heap.size
    if size > EXACT_LIMIT:
        heap.sampled = 1
        state = cache.pool[0].random
        for i in range(SAMPLE):
            state = next_state(state)
            slots[i] = cache.arena[heap.start + np.int64((state >> np.uint64(33)) % np.uint64(size))]
        cache.pool[0].random = state
        score(cache, slots, SAMPLE, scores)
        best = 0
        for i in range(SAMPLE):
            blocks[slots[i]].key = scores[i]
            if i > 0 and precedes(blocks, slots[i], slots[best]):
                best = i
        heap.head = slots[best]
        heap.score = scores[best]
        return
    heap.sampled = 0
    for i in range(size):
        slots[i] = cache.arena[heap.start + i]
    score(cache, slots, size, scores)
    for i in range(size):
        blocks[slots[i]].key = scores[i]
    rebuild(blocks, cache.heaps, cache.arena, c)
    heap.head = cache.arena[heap.start]
    heap.score = blocks[heap.head].key
    heap.dirty = 0
    heap.now = cache.pool[0].now
    heap.version = cache.pool[0].version


@kernel(types.void(CACHE, SCORER, SLOTS, SCORES))
def _refresh(cache, score, slots, scores):  # type: ignore[no-untyped-def]
    """Bring the head and the head's score of every class up to date."""
    pool = cache.pool[0]
    heaps = cache.heaps
    occupied = heaps[0].occupied
    for i in range(occupied):
        heap = heaps[heaps[i].listed]
        if heap.ordered != 1:
            if (
                heap.dirty == 1
                or heap.sampled == FLOORS
                or heap.size > EXACT_LIMIT
                or heap.now != pool.now
                or heap.version != pool.version
            ):
                _rescore(cache, score, heaps[i].listed, slots, scores)
            else:
                heap.head = cache.arena[heap.start]
                heap.score = cache.blocks[heap.head].key
    stale = 0
    for i in range(occupied):
        heap = heaps[heaps[i].listed]
        if heap.ordered == 1:
            head = cache.arena[heap.start]
            if heap.head != head or heap.now != pool.now or heap.version != pool.version:
                heap.head = head
                heap.now = pool.now
                heap.version = pool.version
                slots[stale] = head
                stale += 1
    if stale > 0:
        score(cache, slots, stale, scores)
        for i in range(stale):
            heaps[cache.blocks[slots[i]].cls].score = scores[i]


@kernel(INT(CACHE))
def _lowest(cache):  # type: ignore[no-untyped-def]
    """The class whose head goes next, -1 if nothing can be evicted: lowest score, then deeper, then older."""
    heaps = cache.heaps
    if heaps[0].occupied == 0:
        return -1
    best = heaps[0].listed
    for i in range(1, heaps[0].occupied):
        heap = heaps[heaps[i].listed]
        other = heaps[best]
        if heap.score != other.score:
            if heap.score < other.score:
                best = heaps[i].listed
            continue
        a = cache.blocks[heap.head]
        b = cache.blocks[other.head]
        if a.offset > b.offset or (a.offset == b.offset and a.access < b.access):
            best = heaps[i].listed
    return best


@kernel(INT(CACHE, INT, SLOTS, INT))
def _take_ordered(cache, need, taken, start):  # type: ignore[no-untyped-def]
    """Victims of a policy with one ordered class: the heap's head, again and again.

    The parent that a victim lays bare takes its place at the head, where it mostly is the next victim, so that a chain
    goes block by block without work in the heap.
    """
    heap = cache.heaps[0]
    count = start
    while count < need:
        if heap.size == 0:
            return count
        slot = cache.arena[heap.start]
        taken[count] = slot
        count += 1
        parent = evict(cache, slot)
        if parent >= 0:
            replace_head(cache.blocks, cache.heaps, cache.arena, 0, parent)
        else:
            remove(cache.blocks, cache.heaps, cache.arena, slot)
    return count


@kernel(types.void(CACHE, SCORER, INT, SLOTS, SCORES))
def _push_scored(cache, score, slot, slots, scores):  # type: ignore[no-untyped-def]
    """Make a slot a candidate in the midst of a choice: in an unordered class it is scored at once."""
    blocks = cache.blocks
    heap = cache.heaps[blocks[slot].cls]
    if heap.ordered == 1 or heap.dirty == 1 or heap.sampled == 1:
        push(blocks, cache.heaps, cache.arena, slot)
        return
    slots[0] = slot
    score(cache, slots, 1, scores)
    blocks[slot].key = scores[0]
    append(blocks, cache.heaps, cache.arena, slot)
    sift_up(blocks, cache.arena, heap.start, heap.size - 1)


@kernel(INT(CACHE, SCORER, INT, SLOTS, INT, SLOTS, SCORES))
def _take_scored(cache, score, need, taken, start, slots, scores):  # type: ignore[no-untyped-def]
    """Victims among the heads of several classes."""
    blocks = cache.blocks
    count = start
    while count < need:
        _refresh(cache, score, slots, scores)
        c = _lowest(cache)
        if c < 0:
            return count
        heap = cache.heaps[c]
        if heap.ordered != 1 and heap.sampled == 1:
            cache.pool[0].sampled += 1
            slot = heap.head
            remove(blocks, cache.heaps, cache.arena, slot)
            taken[count] = slot
            count += 1
            parent = evict(cache, slot)
            if parent >= 0:
                _push_scored(cache, score, parent, slots, scores)
            continue
        # The class goes on while its head scores below all other heads; nothing below changes theirs.
        second = math.inf
        for i in range(cache.heaps[0].occupied):
            other = cache.heaps[i].listed
            if other != c:
                second = min(second, cache.heaps[other].score)
        while True:
            slot = heap.head
            key = blocks[slot].key
            taken[count] = slot
            count += 1
            parent = evict(cache, slot)
            if parent >= 0 and blocks[parent].cls == c:
                if heap.ordered != 1:
                    slots[0] = parent
                    score(cache, slots, 1, scores)
                    blocks[parent].key = scores[0]
                replace_head(blocks, cache.heaps, cache.arena, c, parent)
                heap.head = -1  # the slot may come back as the head with another block, whose score is not this one
                parent = -1
            else:
                remove(blocks, cache.heaps, cache.arena, slot)
            if parent >= 0:
                _push_scored(cache, score, parent, slots, scores)
                break
            if heap.size == 0 or count == need:
                break
            heap.head = cache.arena[heap.start]
            if heap.ordered != 1:
                heap.score = blocks[heap.head].key
            elif blocks[heap.head].key != key:
                slots[0] = heap.head
                score(cache, slots, 1, scores)
                heap.score = scores[0]
            if not heap.score < second:
                break
    return count


@kernel(INT(CACHE, SCORER, types.FunctionType(ON_EVICT), INT, SLOTS, INT, SLOTS, SCORES))
def _take_stepwise(cache, score, on_evict, need, taken, start, slots, scores):  # type: ignore[no-untyped-def]
    """Victims of a stepwise policy, which hears of each before the next is chosen."""
    count = start
    while count < need:
        on_evict(cache, taken[count:], 0)
        cache.pool[0].version += 1
        _refresh(cache, score, slots, scores)
        c = _lowest(cache)
        if c < 0:
            return count
        slot = cache.heaps[c].head
        remove(cache.blocks, cache.heaps, cache.arena, slot)
        taken[count] = slot
        parent = evict(cache, slot)
        if parent >= 0:
            push(cache.blocks, cache.heaps, cache.arena, parent)
        on_evict(cache, taken[count:], 1)
        count += 1
    return count


@kernel(INT(CACHE, SCORER, types.FunctionType(ON_EVICT), INT, SLOTS, SLOTS, SCORES))
def take(cache, score, on_evict, need, taken, slots, scores):  # type: ignore[no-untyped-def]
    """Take `need` slots into `taken`: free ones first, then victims. Return how many there were.

    The taken slots hold no block; the caller inserts one into each, or gives it back with `release_unhashed`.
    `slots` and `scores` are room for N slots and scores.
    """
    pool = cache.pool[0]
    free = take_free(cache, need, taken)
    if free == need:
        return need
    if pool.stepwise == 1:
        count = _take_stepwise(cache, score, on_evict, need, taken, free, slots, scores)
    elif len(cache.heaps) == 1 and cache.heaps[0].ordered == 1:
        count = _take_ordered(cache, need, taken, free)
    else:
        count = free
        c = cache.heaps[0].listed
        if cache.heaps[0].occupied == 1 and cache.heaps[c].ordered == LAZY and cache.heaps[c].size <= EXACT_LIMIT:
            count = take_lazy(cache, score, c, need, taken, count, slots, scores)
        count = _take_scored(cache, score, need, taken, count, slots, scores)
    if pool.stepwise == 0:
        on_evict(cache, taken[free:count], count - free)
    for i in range(free, count):
        cache.blocks[taken[i]].identity = -1
    return count
