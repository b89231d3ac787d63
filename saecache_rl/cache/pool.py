"""The block pool of vLLM V1, with the choice of victims left to a policy.

Physical slots hold blocks; an identity may own several (a prompt's whole last block is computed and inserted anew,
and so is a reply that is generated again). Matching takes the oldest copy. A request references what it matched,
takes the missing slots (slots without a hash first, then victims), and at its end releases all.

Candidates are the *leaves*: unreferenced slots whose identity has another copy, or none of whose identity's children is
resident. So resident blocks always form whole prefixes; a parent becomes a candidate when its last child goes. With
``pool.closed == 0`` every unreferenced slot is one.

A request that needs room scores the heads of the ordered classes, and each leaf of the others, once; then it
evicts from the lowest, going down a chain while the parent is the next victim anyway.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from saecache_rl.cache.ghosts import remember
from saecache_rl.cache.heap import append, precedes, push, rebuild, remove, replace_head, sift_up
from saecache_rl.cache.layout import CACHE, GENERATED, INT, LOOSE, ON_EVICT, ON_RELEASE, SCORE, SHARED, SLOTS
from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import NUM_QUEUES

SCORER = types.FunctionType(SCORE)
SCORES = types.float64[::1]

#: Unordered classes with more candidates are sampled.
EXACT_LIMIT = 4096
#: Candidates looked at when sampling.
SAMPLE = 64


@kernel(inline="always")
def is_candidate(cache, slot):  # type: ignore[no-untyped-def]
    """Whether a slot may be evicted now."""
    block = cache.blocks[slot]
    if block.refs > 0 or block.identity < 0:
        return False
    return cache.children[block.identity] == 0 or is_loose(cache, slot)


@kernel(inline="always")
def is_loose(cache, slot):  # type: ignore[no-untyped-def]
    """Whether an unreferenced slot may be evicted while children of its block are resident."""
    block = cache.blocks[slot]
    another_copy = block.next_copy >= 0 or cache.first[block.identity] != slot
    return another_copy or block.flags & LOOSE != 0 or cache.pool[0].closed == 0


@kernel(types.void(CACHE, INT))
def settle(cache, slot):  # type: ignore[no-untyped-def]
    """Put a slot among the candidates, or take it out, as its state now is."""
    candidate = is_candidate(cache, slot)
    if candidate and cache.blocks[slot].position < 0:
        push(cache.blocks, cache.heaps, cache.arena, slot)
    elif not candidate and cache.blocks[slot].position >= 0:
        remove(cache.blocks, cache.heaps, cache.arena, slot)


@kernel(INT(CACHE, SLOTS, INT))
def match(cache, identities, size):  # type: ignore[no-untyped-def]
    """Length of the longest leading run of ``identities[:size]`` that is resident. Changes nothing."""
    hits = 0
    while hits < size and cache.first[identities[hits]] >= 0:
        hits += 1
    return hits


@kernel(types.void(CACHE, SLOTS, INT, SLOTS))
def touch(cache, identities, hits, chain):  # type: ignore[no-untyped-def]
    """A scheduled request takes the matched run: reference each, write its slots to ``chain[:hits]``."""
    cache.pool[0].access += 1
    access = cache.pool[0].access
    now = cache.pool[0].now
    session = cache.request[0].session
    for i in range(hits):
        slot = cache.first[identities[i]]
        chain[i] = slot
        block = cache.blocks[slot]
        if block.position >= 0:
            remove(cache.blocks, cache.heaps, cache.arena, slot)
        if block.refs == 0:
            cache.held[block.queue] -= 1
        if block.session != session:
            block.flags |= SHARED
        block.refs += 1
        block.time = now
        block.access = access
        block.count += 1
        block.flags &= 255 - GENERATED


@kernel(types.void(CACHE, INT))
def _settle_copies(cache, identity):  # type: ignore[no-untyped-def]
    slot = cache.first[identity]
    while slot >= 0:
        settle(cache, slot)
        slot = cache.blocks[slot].next_copy


@kernel(types.void(CACHE, INT, INT, types.boolean), forceinline=True)
def insert(cache, slot, identity, generated):  # type: ignore[no-untyped-def]
    """Give a taken slot its identity, referenced once by the current request."""
    block = cache.blocks[slot]
    block.identity = identity
    block.next_copy = -1
    block.refs = 1
    block.position = -1
    block.key = 0.0
    block.time = cache.pool[0].now
    block.access = cache.pool[0].access
    block.count = 1
    block.offset = cache.offset[identity]
    block.session = cache.request[0].session
    block.token_type = cache.token_type[identity]
    block.cls = 0
    block.queue = 0
    block.flags = GENERATED if generated else 0
    oldest = cache.first[identity]
    if oldest < 0:
        cache.first[identity] = slot
        parent = cache.parent[identity]
        if parent >= 0:
            cache.children[parent] += 1
            if cache.children[parent] == 1 and cache.first[parent] >= 0:
                _settle_copies(cache, parent)
    else:
        youngest = oldest
        while cache.blocks[youngest].next_copy >= 0:
            youngest = cache.blocks[youngest].next_copy
        cache.blocks[youngest].next_copy = slot
        settle(cache, oldest)


@kernel(INT(CACHE, INT), forceinline=True)
def evict(cache, slot):  # type: ignore[no-untyped-def]
    """Drop a slot's identity; the slot is no candidate any more. Return the parent's slot if that made it one, else -1.

    The parent is not put among the candidates: the caller may evict it at once.
    """
    remember(cache, slot)
    block = cache.blocks[slot]
    identity = block.identity
    cache.held[block.queue] -= 1
    cache.evicted[block.queue] += 1
    cache.evicted[NUM_QUEUES + block.token_type] += 1
    cache.pool[0].evictions += 1
    before = -1
    at = cache.first[identity]
    while at != slot:
        before = at
        at = cache.blocks[at].next_copy
    if before < 0:
        cache.first[identity] = block.next_copy
    else:
        cache.blocks[before].next_copy = block.next_copy
    block.next_copy = -1
    remaining = cache.first[identity]
    if remaining >= 0:
        if cache.blocks[remaining].next_copy < 0:
            settle(cache, remaining)
        return -1
    parent = cache.parent[identity]
    if parent < 0:
        return -1
    cache.children[parent] -= 1
    if cache.children[parent] > 0:
        return -1
    above = cache.first[parent]
    if above < 0:
        return -1
    if cache.blocks[above].next_copy >= 0 or cache.blocks[above].position >= 0 or not is_candidate(cache, above):
        return -1
    return above


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
            # A 64-bit linear congruential step; Knuth's MMIX constants (TAOCP 2, 3.3.4).
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
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
        if heap.ordered == 0:
            if heap.dirty == 1 or heap.size > EXACT_LIMIT or heap.now != pool.now or heap.version != pool.version:
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
        if heap.ordered == 0 and heap.sampled == 1:
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
                if heap.ordered == 0:
                    slots[0] = parent
                    score(cache, slots, 1, scores)
                    blocks[parent].key = scores[0]
                replace_head(blocks, cache.heaps, cache.arena, c, parent)
                parent = -1
            else:
                remove(blocks, cache.heaps, cache.arena, slot)
            if parent >= 0:
                _push_scored(cache, score, parent, slots, scores)
                break
            if heap.size == 0 or count == need:
                break
            heap.head = cache.arena[heap.start]
            if heap.ordered == 0:
                heap.score = blocks[heap.head].key
            elif blocks[heap.head].key != key:
                slots[0] = heap.head
                score(cache, slots, 1, scores)
                heap.score = scores[0]
            if not heap.score < second:
                break
    return count


@kernel(INT(CACHE, SCORER, types.FunctionType(ON_EVICT), INT, SLOTS, SLOTS, SCORES))
def take(cache, score, on_evict, need, taken, slots, scores):  # type: ignore[no-untyped-def]
    """Take `need` slots into `taken`: free ones first, then victims. Return how many there were.

    The taken slots hold no block; the caller inserts one into each, or gives it back with `release_unhashed`.
    `slots` and `scores` are room for N slots and scores.
    """
    pool = cache.pool[0]
    free = 0
    while free < need and pool.free > 0:
        pool.free -= 1
        taken[free] = cache.free_slots[pool.free]
        free += 1
    if free == need:
        return need
    if len(cache.heaps) == 1 and cache.heaps[0].ordered == 1:
        count = _take_ordered(cache, need, taken, free)
    else:
        count = _take_scored(cache, score, need, taken, free, slots, scores)
    on_evict(cache, taken[free:count], count - free)
    for i in range(free, count):
        cache.blocks[taken[i]].identity = -1
    return count


@kernel(types.void(CACHE, types.FunctionType(ON_RELEASE), SLOTS, INT))
def release(cache, on_release, chain, size):  # type: ignore[no-untyped-def]
    """A request ends: its full blocks ``chain[:size]`` stay, unreferenced by it, the deepest the least recent."""
    blocks = cache.blocks
    pool = cache.pool[0]
    pool.release += 1
    on_release(cache, chain, size)
    for i in range(size - 1, -1, -1):
        slot = chain[i]
        block = blocks[slot]
        block.refs -= 1
        if block.refs > 0:
            continue
        cache.held[block.queue] += 1
        # All but the last have a resident child: the next of the chain.
        if is_loose(cache, slot) or (i == size - 1 and cache.children[block.identity] == 0):
            push(blocks, cache.heaps, cache.arena, slot)


@kernel(types.void(CACHE, INT))
def release_unhashed(cache, slot):  # type: ignore[no-untyped-def]
    """Give back a slot that holds a partial block: worth nothing, used first."""
    cache.blocks[slot].identity = -1
    cache.free_slots[cache.pool[0].free] = slot
    cache.pool[0].free += 1
