"""The block pool of vLLM V1: what is resident, who references it, and what may be evicted.

Physical slots hold blocks; an identity may own several (a prompt's whole last block is computed and inserted anew,
and so is a reply that is generated again). Matching takes the oldest copy. A request references what it matched,
takes the missing slots (slots without a hash first, then victims), and at its end releases all.

Candidates are the *leaves*: unreferenced slots whose identity has another copy, or none of whose identity's children is
resident. So resident blocks always form whole prefixes; a parent becomes a candidate when its last child goes. With
``pool.closed == 0`` every unreferenced slot is one.
"""

from __future__ import annotations

from numba import types

from saecache_rl.cache.ghosts import remember
from saecache_rl.cache.heap import push, remove
from saecache_rl.cache.layout import CACHE, GENERATED, INT, LOOSE, ON_RELEASE, SHARED, SLOTS
from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import NUM_QUEUES


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


@kernel(INT(CACHE, INT, SLOTS), forceinline=True)
def take_free(cache, need, taken):  # type: ignore[no-untyped-def]
    """Take up to `need` slots that hold no block into `taken`; return how many there were."""
    pool = cache.pool[0]
    free = 0
    while free < need and pool.free > 0:
        pool.free -= 1
        taken[free] = cache.free_slots[pool.free]
        free += 1
    return free


@kernel(types.void(CACHE, INT))
def release_unhashed(cache, slot):  # type: ignore[no-untyped-def]
    """Give back a slot that holds a partial block: worth nothing, used first."""
    cache.blocks[slot].identity = -1
    cache.free_slots[cache.pool[0].free] = slot
    cache.pool[0].free += 1
