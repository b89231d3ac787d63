"""Compiled entry points by which a live cache lets a request in: what it matched, and what it takes.

A batch of vLLM's block ids crosses once a call. vLLM does the matching and keeps the reference counts that decide; the
counts here follow them. A slot is a block id less 1, since vLLM's block 0 is never used.
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.ghosts import find_ghost, forget_ghost
from saecache_rl.cache.heap import remove
from saecache_rl.cache.layout import CACHE, GENERATED, INT, SHARED, Cache, cache_at
from saecache_rl.cache.victims import take
from saecache_rl.compiled import kernel
from saecache_rl.engines.serve import COUNTERS, STRUCTURAL, _bin, _count_gap
from saecache_rl.engines.vllm.handle import (
    AFTER_CACHE,
    AFTER_NODES,
    FUNCTIONS,
    HANDLE,
    IDS,
    WORK,
    counters_at,
    on_access_at,
    on_evict_at,
    score_at,
    set_request,
    work_at,
)
from saecache_rl.engines.vllm.nodes import NODES, find_node, nodes_at, tidy_node
from saecache_rl.engines.vllm.retention import end_retention, restore, retention_at


@kernel(types.void(CACHE, INT))
def _reference(cache, slot):  # type: ignore[no-untyped-def]
    block = cache.blocks[slot]
    if block.position >= 0:
        remove(cache.blocks, cache.heaps, cache.arena, slot)
    if block.refs == 0 and block.identity >= 0:
        cache.held[block.queue] -= 1
    block.refs += 1


@kernel(types.void(CACHE, COUNTERS, IDS, INT, types.int64[::1], types.uint8[::1], INT, INT, INT))
def _count(cache, counters, chain, hits, prompt, token_types, matchable, tokens, block_size):  # type: ignore[no-untyped-def]
    """Count one request as the simulator does (`saecache_rl.engines.serve`), its missed blocks by fingerprint."""
    counters.totals[0] += tokens
    counters.totals[1] += hits * block_size
    counters.totals[2] += matchable
    counters.totals[3] += hits
    deepest = cache.pool[0].deepest
    for i in range(matchable):
        counters.types[0, token_types[i]] += 1
    for i in range(hits):
        counters.types[1, token_types[i]] += 1
        block = cache.blocks[chain[i]]
        counters.queues[0, block.queue] += 1
        if block.queue == STRUCTURAL:
            b = _bin(block.offset, deepest)
            counters.offsets[0, b] += 1
            counters.offsets[1, b] += 1
    for i in range(hits, len(prompt)):
        ring = find_ghost(cache, prompt[i])
        if ring >= 0 and i < matchable:
            ghost = cache.ghosts[ring]
            counters.queues[1, ghost.queue] += 1
            counters.types[2, ghost.token_type] += 1
            if ghost.queue == STRUCTURAL:
                counters.offsets[0, _bin(ghost.offset, deepest)] += 1


@kernel(types.void(CACHE, NODES, WORK, HANDLE, INT, types.int64[::1], types.uint8[::1]))
def _tell_access(cache, nodes, work, handle, hits, prompt, token_types):  # type: ignore[no-untyped-def]
    """Call the policy's function, if it has one."""
    chain = work.chain
    # What is missed has no node yet; it gets numbers above all nodes for the length of this call.
    spare = len(cache.parent) - len(cache.blocks)
    missed = min(len(prompt) - hits, len(cache.blocks))
    for i in range(missed):
        known = find_node(cache, nodes, prompt[hits + i])
        node = spare + i if known < 0 else known
        work.slots[i] = node
        if known < 0:
            cache.fingerprint[node] = prompt[hits + i]
            cache.offset[node] = hits + i
            cache.token_type[node] = token_types[hits + i]
            cache.first[node] = -1
            cache.parent[node] = -1
            if i > 0:
                cache.parent[node] = work.slots[i - 1]
            elif hits > 0:
                cache.parent[node] = cache.blocks[chain[hits - 1]].identity
    on_access = on_access_at(handle[FUNCTIONS + 2], handle[FUNCTIONS + 3])
    on_access(cache, chain, hits, work.slots[:missed])


@kernel(INT(HANDLE, IDS, types.int64[::1], types.uint8[::1], INT))
def access(handle, ids, prompt, token_types, block_size):  # type: ignore[no-untyped-def]
    """A request is scheduled for the first time and has matched blocks `ids`: reference and count. Return its number.

    `prompt` and `token_types` are of all full blocks of its prompt.
    """
    cache, nodes, work = cache_at(handle), nodes_at(handle[AFTER_CACHE:]), work_at(handle)
    retention, counters = retention_at(handle[AFTER_NODES:]), counters_at(handle)
    set_request(cache, work)
    pool = cache.pool[0]
    pool.access += 1
    hits = len(ids)
    chain = work.chain
    for i in range(hits):
        slot = ids[i] - 1
        chain[i] = slot
        _reference(cache, slot)
        restore(cache, retention, slot)
        block = cache.blocks[slot]
        if block.session != cache.request[0].session:
            block.flags |= SHARED
        block.time = pool.now
        block.access = pool.access
        block.count += 1
        block.flags &= 255 - GENERATED
        if retention.priority[slot] < 0:
            retention.priority[slot] = 0
        elif retention.seconds[slot] > 0.0 and pool.now < retention.until[slot]:
            retention.until[slot] = pool.now + retention.seconds[slot]
    _count(
        cache,
        counters,
        chain,
        hits,
        prompt,
        token_types,
        work.call[0].matchable,
        work.call[0].prompt_tokens,
        block_size,
    )
    _count_gap(counters, work.call[0].gap_seconds, work.call[0].gap_kind)
    if handle[FUNCTIONS + 10] != 0:
        _tell_access(cache, nodes, work, handle, hits, prompt, token_types)
    if len(cache.ghosts) > 0:
        for i in range(hits, len(prompt)):
            ring = find_ghost(cache, prompt[i])
            if ring >= 0:
                forget_ghost(cache, ring)
    return pool.access


@kernel(types.void(HANDLE, IDS))
def reference(handle, ids):  # type: ignore[no-untyped-def]
    """Blocks are referenced once more without being accessed: a resumed request, a look-up that pins."""
    cache = cache_at(handle)
    for i in range(len(ids)):
        if ids[i] > 0:
            _reference(cache, ids[i] - 1)


@kernel(CACHE(CACHE))
def _without_added(cache):  # type: ignore[no-untyped-def]
    """The cache less the class of hints, so that a policy of one class stays one."""
    return Cache(
        cache.parent,
        cache.offset,
        cache.token_type,
        cache.fingerprint,
        cache.first,
        cache.children,
        cache.blocks,
        cache.free_slots,
        cache.heaps[: len(cache.heaps) - 1],
        cache.arena,
        cache.ghosts,
        cache.ghost_table,
        cache.held,
        cache.evicted,
        cache.pool,
        cache.request,
        cache.params,
        cache.reals,
        cache.ints,
        cache.future,
    )


@kernel(INT(HANDLE, INT, types.float64))
def take_blocks(handle, need, now):  # type: ignore[no-untyped-def]
    """Take blocks, each referenced once; their ids stand in `Work.taken`. Return how many there were."""
    cache, nodes, work = cache_at(handle), nodes_at(handle[AFTER_CACHE:]), work_at(handle)
    retention = retention_at(handle[AFTER_NODES:])
    cache.pool[0].now = max(cache.pool[0].now, now)
    added = len(cache.heaps) - 1
    score = score_at(handle[FUNCTIONS], handle[FUNCTIONS + 1])
    on_evict = on_evict_at(handle[FUNCTIONS + 6], handle[FUNCTIONS + 7])
    if retention.next_end[0] <= cache.pool[0].now:
        end_retention(cache, retention, cache.pool[0].now)
    taken = work.taken
    if retention.next_end[0] == np.inf:  # no slot is in the added class, which the choice need not see
        cache.heaps[added].room = 0
        count = take(_without_added(cache), score, on_evict, need, taken, work.slots, work.scores)
    else:
        hinted = score_at(handle[FUNCTIONS + 8], handle[FUNCTIONS + 9])
        count = take(cache, hinted, on_evict, need, taken, work.slots, work.scores)
    for i in range(count):
        slot = taken[i]
        tidy_node(cache, nodes, nodes.of_slot[slot])
        nodes.of_slot[slot] = -1
        cache.blocks[slot].refs = 1
        retention.priority[slot] = 0
        retention.seconds[slot] = 0.0
        retention.until[slot] = 0.0
        taken[i] = slot + 1
    return count
