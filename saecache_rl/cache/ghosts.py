"""Ghosts: the remembered identities of evicted blocks, the latest G of them.

A ring of records in order of eviction, and a hash table of their places (linear probing; a removal moves followers
back, so no tombstones pile up and the table's cost stays flat however long it runs).
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.layout import CACHE, INT
from saecache_rl.compiled import kernel


@kernel(inline="always")
def _home(fingerprint, mask):  # type: ignore[no-untyped-def]
    """Where a fingerprint belongs in the table; multiplicative hashing, Knuth TAOCP 3, 6.4."""
    return np.int64((np.uint64(fingerprint) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask


@kernel(inline="always")
def fingerprint_of(cache, identity):  # type: ignore[no-untyped-def]
    """What outlives the block: its hash in a live engine, its identity in the simulator."""
    if len(cache.fingerprint) == 0:
        return np.int64(identity)
    return cache.fingerprint[identity]


@kernel(INT(CACHE, INT), forceinline=True)
def find_ghost(cache, fingerprint):  # type: ignore[no-untyped-def]
    """Place of a ghost in the ring, -1 if it is not remembered."""
    table = cache.ghost_table
    if len(table) == 0:
        return np.int64(-1)
    mask = len(table) - 1
    place = _home(fingerprint, mask)
    while table[place] >= 0:
        if cache.ghosts[table[place]].fingerprint == fingerprint:
            return np.int64(table[place])
        place = (place + 1) & mask
    return np.int64(-1)


@kernel(types.void(CACHE, INT))
def forget_ghost(cache, ring):  # type: ignore[no-untyped-def]
    """Remove the ghost at a place of the ring."""
    table = cache.ghost_table
    mask = len(table) - 1
    place = _home(cache.ghosts[ring].fingerprint, mask)
    while table[place] != ring:
        place = (place + 1) & mask
    cache.ghosts[ring].fingerprint = -1
    hole = place
    table[hole] = -1
    place = (place + 1) & mask
    while table[place] >= 0:
        home = _home(cache.ghosts[table[place]].fingerprint, mask)
        # A follower may fill the hole unless its home lies after the hole on the way to it.
        if ((place - home) & mask) >= ((place - hole) & mask):
            table[hole] = table[place]
            table[place] = -1
            hole = place
        place = (place + 1) & mask


@kernel(types.void(CACHE, INT), forceinline=True)
def remember(cache, slot):  # type: ignore[no-untyped-def]
    """Make a ghost of a block that is being evicted; the oldest ghost gives way."""
    count = len(cache.ghosts)
    if count == 0:
        return
    fingerprint = fingerprint_of(cache, cache.blocks[slot].identity)
    known = find_ghost(cache, fingerprint)
    if known >= 0:  # a spare copy went before
        forget_ghost(cache, known)
    ring = cache.pool[0].ghost_next
    if cache.ghosts[ring].fingerprint >= 0:
        forget_ghost(cache, ring)
    cache.pool[0].ghost_next = (ring + 1) % count
    block = cache.blocks[slot]
    ghost = cache.ghosts[ring]
    ghost.fingerprint = fingerprint
    ghost.time = block.time
    ghost.count = block.count
    ghost.session = block.session
    ghost.offset = block.offset
    ghost.token_type = block.token_type
    ghost.queue = block.queue
    ghost.flags = block.flags
    ghost.cls = block.cls
    mask = len(cache.ghost_table) - 1
    place = _home(fingerprint, mask)
    while cache.ghost_table[place] >= 0:
        place = (place + 1) & mask
    cache.ghost_table[place] = ring
