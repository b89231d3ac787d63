"""Ghosts: the remembered identities of evicted blocks, the latest G of them.

A ring of records in order of eviction, and a hash table of their places (`saecache_rl.cache.fingerprints`).
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.fingerprints import enter, look_up, take_out
from saecache_rl.cache.layout import CACHE, INT
from saecache_rl.compiled import kernel


@kernel(inline="always")
def fingerprint_of(cache, identity):  # type: ignore[no-untyped-def]
    """What outlives the block: its hash in a live engine, its identity in the simulator."""
    if len(cache.fingerprint) == 0:
        return np.int64(identity)
    return cache.fingerprint[identity]


@kernel(INT(CACHE, INT), forceinline=True)
def find_ghost(cache, fingerprint):  # type: ignore[no-untyped-def]
    """Place of a ghost in the ring, -1 if it is not remembered."""
    return look_up(cache.ghost_table, cache.ghosts, fingerprint)


@kernel(types.void(CACHE, INT))
def forget_ghost(cache, ring):  # type: ignore[no-untyped-def]
    """Remove the ghost at a place of the ring."""
    take_out(cache.ghost_table, cache.ghosts, ring)
    cache.ghosts[ring].fingerprint = -1


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
    enter(cache.ghost_table, fingerprint, ring)
