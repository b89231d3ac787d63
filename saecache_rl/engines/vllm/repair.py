"""Compiled entry points that make a live cache's links anew: after an error, and where vLLM's free queue says how."""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.layout import cache_at
from saecache_rl.cache.pool import settle
from saecache_rl.compiled import kernel
from saecache_rl.engines.vllm.handle import AFTER_CACHE, HANDLE, IDS
from saecache_rl.engines.vllm.nodes import nodes_at, tidy_node


@kernel(types.void(HANDLE, types.uint8[::1], IDS, types.int32[::1]))
def restore(handle, hashed, refs, order):  # type: ignore[no-untyped-def]
    """Make the links anew from each slot's record, for the slots that hold a hash; `order`: oldest access first.

    For after an error in the midst of a call. Slots without a hash must be on no list; vLLM's free ones come later.
    """
    cache, nodes = cache_at(handle), nodes_at(handle[AFTER_CACHE:])
    blocks, heaps = cache.blocks, cache.heaps
    cache.first[:] = -1
    cache.children[:] = 0
    cache.held[:] = 0
    cache.pool[0].free = 0
    cache.pool[0].version += 1
    heaps[0].occupied = 0
    for c in range(len(heaps)):
        heaps[c].size = 0
        heaps[c].room = 0
        heaps[c].start = 0
        heaps[c].head = -1
        heaps[c].sampled = 0
        heaps[c].dirty = 1
    for i in range(len(order)):
        slot = order[i]
        block = blocks[slot]
        node = nodes.of_slot[slot]
        block.refs = refs[slot]
        block.position = -1
        block.next_copy = -1
        block.identity = -1
        if hashed[slot] == 0 or node < 0:
            nodes.of_slot[slot] = -1
            continue
        if not np.isfinite(block.key):
            block.key = 0.0
        block.identity = node
        youngest = cache.first[node]
        if youngest < 0:
            cache.first[node] = slot
        else:
            while blocks[youngest].next_copy >= 0:
                youngest = blocks[youngest].next_copy
            blocks[youngest].next_copy = slot
    # A node with neither a slot nor children is given back; every other counts for its parent.
    for node in range(len(cache.parent)):
        if cache.first[node] >= 0 and cache.parent[node] >= 0:
            cache.children[cache.parent[node]] += 1
    for node in range(len(nodes.free)):
        tidy_node(cache, nodes, node)
    for i in range(len(order)):
        slot = order[i]
        block = blocks[slot]
        if block.identity >= 0 and block.refs == 0:
            cache.held[block.queue] += 1
            settle(cache, slot)


@kernel(types.void(HANDLE, IDS))
def set_free(handle, ids):  # type: ignore[no-untyped-def]
    """The stack of blocks without a hash, anew: `ids` in the order in which they are to be used."""
    cache = cache_at(handle)
    cache.pool[0].free = len(ids)
    for i in range(len(ids)):
        cache.free_slots[len(ids) - 1 - i] = ids[i] - 1
