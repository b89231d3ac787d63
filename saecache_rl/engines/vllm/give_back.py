"""Compiled entry points by which blocks of a live cache get a hash, lose it, and are given back."""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.ghosts import find_ghost, forget_ghost
from saecache_rl.cache.heap import remove
from saecache_rl.cache.layout import CACHE, INT, SHARED, cache_at
from saecache_rl.cache.pool import evict, insert, settle
from saecache_rl.compiled import kernel
from saecache_rl.engines.vllm.handle import (
    AFTER_CACHE,
    AFTER_NODES,
    FUNCTIONS,
    HANDLE,
    IDS,
    NO_HINT,
    NO_REUSE,
    counters_at,
    on_release_at,
    set_request,
    work_at,
)
from saecache_rl.engines.vllm.nodes import NODES, add_node, find_node, nodes_at, tidy_node
from saecache_rl.engines.vllm.retention import restore, retain, retention_at
from saecache_rl.vocabulary import NUM_QUEUES


@kernel(types.void(CACHE, NODES, INT))
def _empty(cache, nodes, slot):  # type: ignore[no-untyped-def]
    """Take a slot's identity away; this is no eviction and leaves no ghost. Its references stay."""
    block = cache.blocks[slot]
    node = block.identity
    if block.position >= 0:
        remove(cache.blocks, cache.heaps, cache.arena, slot)
    if block.refs > 0:
        cache.held[block.queue] += 1  # `evict` takes it for unreferenced
    known = find_ghost(cache, cache.fingerprint[node])
    parent_slot = evict(cache, slot)
    cache.evicted[block.queue] -= 1
    cache.evicted[NUM_QUEUES + block.token_type] -= 1
    cache.pool[0].evictions -= 1
    ring = find_ghost(cache, cache.fingerprint[node])
    if known < 0 and ring >= 0:
        forget_ghost(cache, ring)
    block.identity = -1
    if parent_slot >= 0:
        settle(cache, parent_slot)
    tidy_node(cache, nodes, node)
    nodes.of_slot[slot] = -1


@kernel(types.void(HANDLE, IDS, types.int64[::1], types.uint8[::1], INT, INT, INT))
def insert_blocks(handle, ids, fingerprints, token_types, offset, before, generated_from):  # type: ignore[no-untyped-def]
    """Taken blocks got their hashes: `ids` follow the block `before` (0: none) of their request, from `offset` on.

    Blocks at offsets of at least `generated_from` were made by decoding.
    """
    cache, nodes, work = cache_at(handle), nodes_at(handle[AFTER_CACHE:]), work_at(handle)
    set_request(cache, work)
    parent = cache.blocks[before - 1].identity if before > 0 else -1
    for i in range(len(ids)):
        if ids[i] <= 0:  # vLLM's null block
            parent = -1
            continue
        slot = ids[i] - 1
        if cache.blocks[slot].identity >= 0:  # a partial hash gives way to that of the full block
            _empty(cache, nodes, slot)
        node = find_node(cache, nodes, fingerprints[i])
        if node < 0:
            node = add_node(cache, nodes, fingerprints[i])
        if cache.first[node] < 0:
            cache.parent[node] = parent
            cache.offset[node] = offset + i
            cache.token_type[node] = token_types[i]
        refs = cache.blocks[slot].refs
        insert(cache, slot, node, offset + i >= generated_from)
        cache.blocks[slot].refs = max(refs, 1)
        cache.blocks[slot].access = work.call[0].access
        nodes.of_slot[slot] = node
        parent = node


@kernel(types.void(HANDLE, IDS))
def drop_hashes(handle, ids):  # type: ignore[no-untyped-def]
    """vLLM has dropped the hashes of these blocks, referenced or not."""
    cache, nodes = cache_at(handle), nodes_at(handle[AFTER_CACHE:])
    for i in range(len(ids)):
        slot = ids[i] - 1
        if slot < 0 or cache.blocks[slot].identity < 0:
            continue
        _empty(cache, nodes, slot)
        if cache.blocks[slot].refs == 0:
            cache.free_slots[cache.pool[0].free] = slot
            cache.pool[0].free += 1


@kernel(types.void(HANDLE, IDS))
def release_blocks(handle, ids):  # type: ignore[no-untyped-def]
    """A request gives blocks back, the deepest first, as vLLM does."""
    cache, work = cache_at(handle), work_at(handle)
    retention, counters = retention_at(handle[AFTER_NODES:]), counters_at(handle)
    on_release = on_release_at(handle[FUNCTIONS + 4], handle[FUNCTIONS + 5])
    set_request(cache, work)
    blocks = cache.blocks
    pool = cache.pool[0]
    chain = work.chain
    size = 0
    for i in range(len(ids) - 1, -1, -1):
        slot = ids[i] - 1
        if slot < 0:
            continue
        if blocks[slot].identity >= 0:
            restore(cache, retention, slot)
            chain[size] = slot
            size += 1
            continue
        blocks[slot].refs -= 1
        if blocks[slot].refs == 0:  # last given, first used: the order of the list, above what is there
            cache.free_slots[pool.free] = slot
            pool.free += 1
    pool.release += 1
    on_release(cache, chain, size)
    priority = work.call[0].priority
    for i in range(size - 1, -1, -1):
        slot = chain[i]
        block = blocks[slot]
        if priority >= 0:
            retention.priority[slot] = priority
            retention.seconds[slot] = work.call[0].retention_seconds
            retention.until[slot] = pool.now + work.call[0].retention_seconds
        elif priority == NO_REUSE and block.count == 1 and block.flags & SHARED == 0:
            retention.priority[slot] = -1
        if priority != NO_HINT or retention.next_end[0] < np.inf:
            retain(cache, retention, slot, pool.now)
        block.refs -= 1
        if block.refs == 0:
            cache.held[block.queue] += 1
            settle(cache, slot)
    if work.call[0].final != 0:
        for q in range(NUM_QUEUES):
            counters.queues[2, q] += cache.held[q]


@kernel(types.void(HANDLE, types.float64))
def begin_window(handle, deepest_decay):  # type: ignore[no-untyped-def]
    """A window of requests begins: what the simulator does at the start of each."""
    cache, counters = cache_at(handle), counters_at(handle)
    cache.pool[0].deepest *= deepest_decay
    cache.pool[0].version += 1
    counters.totals[:] = 0
    counters.queues[:] = 0
    counters.types[:] = 0
    counters.offsets[:] = 0
    counters.gaps[:] = 0.0
