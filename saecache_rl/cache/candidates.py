"""A few leaves to choose a victim from, and the eviction of the one that was chosen.

For pools whose classes are all ordered (`saecache_rl.cache.policy`), so that each heap's head goes first of its class.
"""

from __future__ import annotations

from numba import types

from saecache_rl.cache.heap import precedes, push, remove
from saecache_rl.cache.layout import BLOCKS, CACHE, INT, ON_EVICT, SLOTS
from saecache_rl.cache.pool import evict
from saecache_rl.compiled import kernel


@kernel(INT(BLOCKS, SLOTS, INT, INT, INT))
def _file(blocks, slots, first, end, slot):  # type: ignore[no-untyped-def]
    """Put `slot` in its place in ``slots[first:end]``, which is sorted; the last falls out where there is no room."""
    place = end
    if end == len(slots):
        place = end - 1
        if not precedes(blocks, slot, slots[place]):
            return end
    else:
        end += 1
    while place > first and precedes(blocks, slot, slots[place - 1]):
        slots[place] = slots[place - 1]
        place -= 1
    slots[place] = slot
    return end


@kernel(INT(CACHE, SLOTS, INT, INT, INT))
def _file_below(cache, slots, first, end, slot):  # type: ignore[no-untyped-def]
    """File the two leaves that stand below `slot` in its heap."""
    heap = cache.heaps[cache.blocks[slot].cls]
    below = 2 * cache.blocks[slot].position + 1
    for place in range(below, min(below + 2, heap.size)):
        end = _file(cache.blocks, slots, first, end, cache.arena[heap.start + place])
    return end


@kernel(INT(CACHE, SLOTS, SLOTS))
def find_candidates(cache, chosen, frontier):  # type: ignore[no-untyped-def]
    """Fill `chosen`, (k,), with leaves in order of key, then depth, then age; return how many there are.

    First the head of each class that has one, the lowest k of them; what is left goes to the lowest other leaves. So
    ``chosen[0]`` is the lowest leaf of all, and with room for all leaves all are there. `frontier` is room for
    2 k slots.
    """
    blocks, heaps, arena = cache.blocks, cache.heaps, cache.arena
    count = 0
    for i in range(heaps[0].occupied):
        count = _file(blocks, chosen, 0, count, arena[heaps[heaps[i].listed].start])
    if count == len(chosen) or count == 0:
        return count
    # Of a heap the next lowest are among the children of those that were taken.
    first = 0
    end = 0
    for i in range(count):
        end = _file_below(cache, frontier, first, end, chosen[i])
    while count < len(chosen) and first < end:
        slot = frontier[first]
        first += 1
        count = _file(blocks, chosen, 0, count, slot)
        end = _file_below(cache, frontier, first, end, slot)
    return count


@kernel(INT(CACHE, types.FunctionType(ON_EVICT), INT, INT, SLOTS))
def take_chosen(cache, on_evict, slot, most, taken):  # type: ignore[no-untyped-def]
    """Take the candidate `slot`, then the blocks above it of the same last access, as they become leaves.

    Writes them to `taken`, at most `most`; returns how many. As after `victims.take`, they hold no block.
    """
    blocks = cache.blocks
    count = 0
    while True:
        access = blocks[slot].access
        taken[count] = slot
        count += 1
        parent = evict(cache, slot)
        if blocks[slot].position >= 0:
            remove(blocks, cache.heaps, cache.arena, slot)
        if parent < 0:
            break
        if count == most or blocks[parent].access != access:
            push(blocks, cache.heaps, cache.arena, parent)
            break
        slot = parent
    on_evict(cache, taken, count)
    for i in range(count):
        blocks[taken[i]].identity = -1
    return count
