"""The blocks that the policy knows of: a hash table, the list by last access, and who holds which index curve.

The list forgets its least recent entries once it is longer than `GHOSTS` times the pool. An entry that is still
resident then stays known, unlisted, until it leaves. The list's first part is the shadow LRU: a cache under LRU with
prefix closure holds exactly the latest blocks of this list.
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.fingerprints import enter, home, look_up, take_out
from saecache_rl.cache.policies.hazard.layout import (
    CENSORED,
    DEEPEST,
    GHOSTS,
    IN_LRU,
    IN_SHADOW,
    LISTED,
    RECENT,
    RECENTLY,
    STATE,
    UNUSED,
)
from saecache_rl.compiled import kernel
from saecache_rl.handles import prefetch

INT = types.int64
#: Of the list by last access: it, its recent part, the shadow LRU.
PARTS = LISTED | IN_LRU | RECENTLY


@kernel(INT(STATE, INT), forceinline=True)
def find(state, fingerprint):  # type: ignore[no-untyped-def]
    """The entry of a fingerprint, -1 if it is not known."""
    return look_up(state.table, state.entries, fingerprint)


@kernel(types.boolean(STATE, INT), forceinline=True)
def ends_segment(state, e):  # type: ignore[no-untyped-def]
    """Whether an entry's block is the deepest of the segment of its last access, and that is still remembered."""
    entry = state.entries[e]
    number = entry.segment
    if number < 0 or entry.flags & DEEPEST == 0:
        return False
    segment = state.segments[number % len(state.segments)]
    return segment.number == number and segment.entry == e


@kernel(types.void(STATE, INT))
def forget(state, e):  # type: ignore[no-untyped-def]
    """Give an entry back: it is neither listed nor resident. Its segment, if still unused, is censored."""
    entry = state.entries[e]
    if ends_segment(state, e):
        segment = state.segments[entry.segment % len(state.segments)]
        if segment.used == UNUSED:
            segment.used = CENSORED
    take_out(state.table, state.entries, e)
    entry.fingerprint = -1
    entry.older = state.head[0].free_entry
    state.head[0].free_entry = e


@kernel(INT(STATE, INT), forceinline=True)
def remember(state, fingerprint):  # type: ignore[no-untyped-def]
    """A new entry that nothing is known of; neither listed nor resident."""
    e = state.head[0].free_entry
    entry = state.entries[e]
    state.head[0].free_entry = entry.older
    prefetch(state.entries, entry.older)  # the next to be made
    entry.fingerprint = fingerprint
    entry.time = 0.0
    entry.segment = -1
    entry.log_interval = np.nan
    entry.lineage = -1
    entry.copies = 0
    entry.newer = -1
    entry.older = -1
    entry.parent = -1
    entry.children = 0
    entry.leaf = -1
    entry.curve = -1
    entry.count = 0
    entry.lineages = 0
    entry.flags = 0
    enter(state.table, fingerprint, e)
    return e


@kernel(INT(STATE, INT, INT), forceinline=True)
def recall(state, fingerprint, deeper):  # type: ignore[no-untyped-def]
    """An entry of a block that was forgotten, while one deeper in its chain was not: what is known of that holds."""
    e = remember(state, fingerprint)
    entry = state.entries[e]
    other = state.entries[deeper]
    entry.time = other.time
    entry.log_interval = other.log_interval
    entry.lineage = other.lineage
    entry.count = other.count
    entry.lineages = other.lineages
    return e


@kernel(types.void(STATE, INT, INT, INT, INT), forceinline=True)
def cut_out(state, first, last, count, parts):  # type: ignore[no-untyped-def]
    """Take the entries from `first` to `last`, all of the same parts, out of the list, and so out of the shadow LRU."""
    head = state.head[0]
    newer, older = np.int64(state.entries[first].newer), np.int64(state.entries[last].older)
    # A part of the list begins with the newest, so that its last, if it is among these, is the last of them.
    if parts & IN_LRU:
        head.lru_held -= count
        if head.lru_last == last:
            head.lru_last = newer
    if parts & RECENTLY:
        head.recent -= count
        if head.recent_last == last:
            head.recent_last = newer
    if newer >= 0:
        state.entries[newer].older = older
    else:
        head.newest = older
    if older >= 0:
        state.entries[older].newer = newer
    else:
        head.oldest = newer
    head.listed -= count


@kernel(types.void(STATE, INT), forceinline=True)
def unlist(state, e):  # type: ignore[no-untyped-def]
    """Take one entry out of the list."""
    parts = np.int64(state.entries[e].flags & PARTS)
    state.entries[e].flags &= 255 - PARTS
    cut_out(state, e, e, 1, parts)


@kernel(types.void(STATE, INT), forceinline=True)
def unlist_chain(state, size):  # type: ignore[no-untyped-def]
    """Take those of ``state.chain[:size]`` that are listed out of the list.

    What was listed together stands together, and is taken out at once.
    """
    entries = state.entries
    first = 0
    while first < size:
        e = np.int64(state.chain[first])
        if e < 0 or entries[e].flags & LISTED == 0:
            first += 1
            continue
        parts = entries[e].flags & PARTS
        entries[e].flags &= 255 - PARTS
        last, end = e, first + 1
        while end < size:
            below = np.int64(state.chain[end])
            if below < 0 or entries[last].older != below or entries[below].flags & PARTS != parts:
                break
            entries[below].flags &= 255 - PARTS
            last = below
            end += 1
        cut_out(state, e, last, end - first, parts)
        first = end


@kernel(types.void(STATE, INT), forceinline=True)
def enlist_chain(state, size):  # type: ignore[no-untyped-def]
    """Put ``state.chain[:size]`` at the recent end of the list, and so into the shadow LRU.

    The deepest is the least recent, so that what is forgotten first leaves whole prefixes known.
    """
    head = state.head[0]
    entries = state.entries
    last = np.int64(state.chain[size - 1])
    older = head.newest
    if older < 0:
        head.oldest = last
    if head.lru_last < 0:
        head.lru_last = last
    if head.recent_last < 0:
        head.recent_last = last
    for i in range(size - 1, -1, -1):
        e = np.int64(state.chain[i])
        entries[e].older = older
        entries[e].flags |= PARTS
        if older >= 0:
            entries[older].newer = e
        older = e
    entries[older].newer = -1
    head.newest = older
    head.listed += size
    head.lru_held += size
    head.recent += size


@kernel(types.void(STATE, INT), forceinline=True)
def forget_if_gone(state, e):  # type: ignore[no-untyped-def]
    """Forget an entry that is neither listed nor resident in the pool or the shadow."""
    entry = state.entries[e]
    if entry.flags & (LISTED | IN_SHADOW) == 0 and entry.copies == 0:
        forget(state, e)


@kernel(types.void(STATE, INT), forceinline=True)
def prefetch_next(state, e):  # type: ignore[no-untyped-def]
    """Prefetch what it takes to forget an entry, and the one newer than it."""
    if e >= 0:
        prefetch(state.table, home(state.entries[e].fingerprint, len(state.table) - 1))
        prefetch(state.entries, state.entries[e].newer)


@kernel(types.void(STATE, INT))
def trim(state, num_blocks):  # type: ignore[no-untyped-def]
    """Bring the shadow LRU and the list back to their sizes."""
    head = state.head[0]
    # One block of the pool goes to the partial last block of the request that comes.
    while head.lru_held > max(num_blocks - 1, 1):
        last = state.entries[head.lru_last]
        last.flags &= 255 - IN_LRU
        head.lru_last = last.newer
        head.lru_held -= 1
    while head.recent > RECENT * num_blocks:
        e = head.recent_last
        entry = state.entries[e]
        prefetch_next(state, np.int64(entry.newer))
        # The deeper blocks of its segment are less recent, and all of these but the last are gone.
        goes_on = entry.older >= 0 and state.entries[entry.older].segment == entry.segment
        if not goes_on and ends_segment(state, e):
            entry.flags &= 255 - RECENTLY
            head.recent_last = entry.newer
            head.recent -= 1
        else:
            unlist(state, e)
            forget_if_gone(state, e)
    while head.listed > GHOSTS * num_blocks:
        e = head.oldest
        prefetch_next(state, np.int64(state.entries[e].newer))
        unlist(state, e)
        forget_if_gone(state, e)


@kernel(types.void(STATE, INT, INT), forceinline=True)
def drop_curve(state, curve, times):  # type: ignore[no-untyped-def]
    """So many entries let go of an index curve; the last gives it back. -1: no curve."""
    if curve < 0:
        return
    state.holders[curve] -= times
    if state.holders[curve] == 0:
        state.curve_free[state.head[0].free_curves] = curve
        state.head[0].free_curves += 1


@kernel(types.void(STATE, INT), forceinline=True)
def drop_if_unheld(state, e):  # type: ignore[no-untyped-def]
    """After an entry has left the pool or the shadow: let go of what only a resident block needs."""
    entry = state.entries[e]
    if entry.copies == 0 and entry.flags & IN_SHADOW == 0:
        drop_curve(state, np.int64(entry.curve), 1)
        entry.curve = -1
        forget_if_gone(state, e)
