"""Candidates for eviction: one binary heap a class, all in one arena, each slot knowing its place.

Order in a heap: lower key, then deeper in its chain, then older access. A heap without an order by key (see
`saecache_rl.cache.policy`) is the same array, whose keys are scores that hold for one clock value.
"""

from __future__ import annotations

import math

from numba import types

from saecache_rl.cache.layout import BLOCKS, CACHE, FLOORS, HEAPS, INT, SLOTS
from saecache_rl.compiled import kernel


@kernel(inline="always")
def precedes(blocks, a, b):  # type: ignore[no-untyped-def]
    """Whether slot `a` is to be evicted before slot `b` of the same class."""
    if blocks[a].key != blocks[b].key:
        return blocks[a].key < blocks[b].key
    if blocks[a].offset != blocks[b].offset:
        return blocks[a].offset > blocks[b].offset
    return blocks[a].access < blocks[b].access


@kernel(types.void(BLOCKS, SLOTS, INT, INT))
def sift_up(blocks, arena, start, place):  # type: ignore[no-untyped-def]
    """Move the slot at `place` towards the root until its parent precedes it."""
    slot = arena[start + place]
    while place > 0:
        above = (place - 1) >> 1
        other = arena[start + above]
        if not precedes(blocks, slot, other):
            break
        arena[start + place] = other
        blocks[other].position = place
        place = above
    arena[start + place] = slot
    blocks[slot].position = place


@kernel(types.void(BLOCKS, SLOTS, INT, INT, INT))
def sift_down(blocks, arena, start, size, place):  # type: ignore[no-untyped-def]
    """Move the slot at `place` away from the root until it precedes both below it."""
    slot = arena[start + place]
    key = blocks[slot].key
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = arena[start + below]
        least = blocks[other].key
        if below + 1 < size:
            right = arena[start + below + 1]
            right_key = blocks[right].key
            # The keys are at hand; only where they are equal is the rest of the order looked up.
            if right_key < least or (right_key == least and precedes(blocks, right, other)):
                other, least = right, right_key
                below += 1
        if not (least < key or (least == key and precedes(blocks, other, slot))):
            break
        arena[start + place] = other
        blocks[other].position = place
        place = below
    arena[start + place] = slot
    blocks[slot].position = place


@kernel(types.void(HEAPS, SLOTS, INT))
def spread(heaps, arena, wanted):  # type: ignore[no-untyped-def]
    """Lay the heaps out anew, those that are not empty, and `wanted`, with equal spare room.

    The arena is larger than all slots together, so that each gets some.
    """
    used = 0
    growing = 0
    for c in range(len(heaps)):
        used += heaps[c].size
        if heaps[c].size > 0 or c == wanted:
            growing += 1
    spare = (len(arena) - used) // growing
    # Move those that go left first to last, then those that go right last to first, so that none overwrites another.
    target = 0
    for c in range(len(heaps)):
        heap = heaps[c]
        heap.room = heap.size + (spare if heap.size > 0 or c == wanted else 0)
        if target <= heap.start:
            for i in range(heap.size):
                arena[target + i] = arena[heap.start + i]
            heap.start = target
        target += heap.room
    for c in range(len(heaps) - 1, -1, -1):
        heap = heaps[c]
        target -= heap.room
        if heap.start < target:
            for i in range(heap.size - 1, -1, -1):
                arena[target + i] = arena[heap.start + i]
            heap.start = target


@kernel(types.void(BLOCKS, HEAPS, SLOTS, INT))
def append(blocks, heaps, arena, slot):  # type: ignore[no-untyped-def]
    """Put `slot` at the end of its class's array, wherever its key would place it."""
    c = blocks[slot].cls
    if heaps[c].size == heaps[c].room:
        spread(heaps, arena, c)
    if heaps[c].size == 0:
        heaps[c].place = heaps[0].occupied
        heaps[heaps[0].occupied].listed = c
        heaps[0].occupied += 1
    arena[heaps[c].start + heaps[c].size] = slot
    blocks[slot].position = heaps[c].size
    heaps[c].size += 1


@kernel(types.void(BLOCKS, HEAPS, SLOTS, INT))
def push(blocks, heaps, arena, slot):  # type: ignore[no-untyped-def]
    """Make `slot` a candidate of its class."""
    append(blocks, heaps, arena, slot)
    c = blocks[slot].cls
    if heaps[c].ordered == 1:
        sift_up(blocks, arena, heaps[c].start, heaps[c].size - 1)
    elif heaps[c].sampled == FLOORS:
        blocks[slot].key = -math.inf  # first in line to get a floor
        sift_up(blocks, arena, heaps[c].start, heaps[c].size - 1)
    else:
        heaps[c].dirty = 1


@kernel(types.void(BLOCKS, HEAPS, SLOTS, INT))
def remove(blocks, heaps, arena, slot):  # type: ignore[no-untyped-def]
    """Make `slot` no candidate any more."""
    c = blocks[slot].cls
    place = blocks[slot].position
    start = heaps[c].start
    last = heaps[c].size - 1
    heaps[c].size = last
    blocks[slot].position = -1
    if heaps[c].head == slot:
        heaps[c].head = -1
    if last == 0:
        heaps[0].occupied -= 1
        moved_class = heaps[heaps[0].occupied].listed
        heaps[heaps[c].place].listed = moved_class
        heaps[moved_class].place = heaps[c].place
    if place == last:
        return
    moved = arena[start + last]
    arena[start + place] = moved
    blocks[moved].position = place
    if place > 0 and precedes(blocks, moved, arena[start + ((place - 1) >> 1)]):
        sift_up(blocks, arena, start, place)
    else:
        sift_down(blocks, arena, start, last, place)


@kernel(types.void(BLOCKS, HEAPS, SLOTS, INT, INT), forceinline=True)
def replace_head(blocks, heaps, arena, c, slot):  # type: ignore[no-untyped-def]
    """Put `slot` in the place of the head of class `c`, which is no candidate any more."""
    start = heaps[c].start
    blocks[arena[start]].position = -1
    arena[start] = slot
    blocks[slot].position = 0
    sift_down(blocks, arena, start, heaps[c].size, 0)


@kernel(types.void(BLOCKS, HEAPS, SLOTS, INT))
def rebuild(blocks, heaps, arena, c):  # type: ignore[no-untyped-def]
    """Order a heap whose keys have all changed."""
    start = heaps[c].start
    size = heaps[c].size
    for place in range(size // 2 - 1, -1, -1):
        sift_down(blocks, arena, start, size, place)


@kernel(types.void(CACHE, INT, INT, types.float64))
def reclass(cache, slot, cls, key):  # type: ignore[no-untyped-def]
    """Give a slot another class and key, wherever it is."""
    blocks = cache.blocks
    candidate = blocks[slot].position >= 0
    if candidate:
        remove(blocks, cache.heaps, cache.arena, slot)
    blocks[slot].cls = cls
    blocks[slot].key = key
    if candidate:
        push(blocks, cache.heaps, cache.arena, slot)


@kernel(types.void(CACHE, INT, types.float64))
def rekey(cache, slot, key):  # type: ignore[no-untyped-def]
    """Give a slot another key, wherever it is; for policies that change a key between releases."""
    reclass(cache, slot, cache.blocks[slot].cls, key)
