"""The leaves of the guard's shadow: a heap by floor, as the pool has for a lazy class (`saecache_rl.cache.lazy`).

Entries stand in ``state.leaves[:head.leaves]``, their floors in `state.scores`; each entry knows its place.
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.generator import next_state
from saecache_rl.cache.lazy import LEAST_SPAN, MOST_SPAN, SPAN
from saecache_rl.cache.policies.hazard.index import least_worth, place_of, worth
from saecache_rl.cache.policies.hazard.layout import STATE
from saecache_rl.cache.victims import SAMPLE
from saecache_rl.compiled import kernel

INT = types.int64


@kernel(types.boolean(STATE, INT, INT), forceinline=True)
def precedes(state, a, b):  # type: ignore[no-untyped-def]
    """Whether the leaf at place a goes before the one at b: lower score, then older, then the earlier entry."""
    if state.scores[a] != state.scores[b]:
        return state.scores[a] < state.scores[b]
    x, y = state.leaves[a], state.leaves[b]
    if state.entries[x].time != state.entries[y].time:
        return state.entries[x].time < state.entries[y].time
    return x < y


@kernel(types.void(STATE, INT, INT), forceinline=True)
def _swap(state, a, b):  # type: ignore[no-untyped-def]
    x, y = state.leaves[a], state.leaves[b]
    state.leaves[a], state.leaves[b] = y, x
    state.entries[x].leaf = b
    state.entries[y].leaf = a
    score = state.scores[a]
    state.scores[a] = state.scores[b]
    state.scores[b] = score


@kernel(types.void(STATE, INT))
def sift_down(state, place):  # type: ignore[no-untyped-def]
    """Move the leaf at a place away from the root until it precedes both below it."""
    size = state.head[0].leaves
    while True:
        below = 2 * place + 1
        if below >= size:
            return
        if below + 1 < size and state.scores[below + 1] < state.scores[below]:
            below += 1
        if not state.scores[below] < state.scores[place]:
            return
        _swap(state, place, below)
        place = below


@kernel(types.void(STATE, INT))
def sift_up(state, place):  # type: ignore[no-untyped-def]
    """Move the leaf at a place towards the root until its parent precedes it."""
    while place > 0:
        above = (place - 1) >> 1
        if not state.scores[place] < state.scores[above]:
            return
        _swap(state, place, above)
        place = above


@kernel(types.void(STATE, INT), forceinline=True)
def add_leaf(state, e):  # type: ignore[no-untyped-def]
    """Make an entry a leaf, first in line to get a floor."""
    head = state.head[0]
    place = head.leaves
    state.leaves[place] = e
    state.scores[place] = -np.inf
    state.entries[e].leaf = place
    head.leaves += 1
    sift_up(state, place)


@kernel(types.void(STATE, INT), forceinline=True)
def remove_leaf(state, e):  # type: ignore[no-untyped-def]
    """Make an entry no leaf any more."""
    head = state.head[0]
    place = np.int64(state.entries[e].leaf)
    last = head.leaves - 1
    if place != last:
        _swap(state, place, last)
    head.leaves = last
    state.entries[e].leaf = -1
    if place != last:
        sift_up(state, place)
        sift_down(state, place)


@kernel(types.float64(STATE, INT, types.float64), forceinline=True)
def worth_of(state, e, now):  # type: ignore[no-untyped-def]
    """An entry's index at its age."""
    entry = state.entries[e]
    return worth(state.curves, np.int64(entry.curve), place_of(now - entry.time))


@kernel(types.float64(STATE, INT, types.float64), forceinline=True)
def floor_of(state, e, now):  # type: ignore[no-untyped-def]
    """The lowest that an entry's index is until the floors' time is over."""
    entry = state.entries[e]
    until = max(state.head[0].floors_until, now)
    return least_worth(state.curves, np.int64(entry.curve), place_of(now - entry.time), place_of(until - entry.time))


@kernel(types.void(STATE, types.float64))
def set_floors(state, now):  # type: ignore[no-untyped-def]
    """Give every leaf its floor, for a time that adapts, and order the heap by it."""
    head = state.head[0]
    if head.span == 0.0:
        head.span = SPAN
    elif head.looked > head.leaves:
        head.span = max(head.span * 0.5, LEAST_SPAN)
    elif 4 * head.looked < head.leaves:
        head.span = min(head.span * 2.0, MOST_SPAN)
    head.looked = 0
    head.floors_until = now + head.span
    for i in range(head.leaves):
        state.scores[i] = floor_of(state, np.int64(state.leaves[i]), now)
    for i in range(head.leaves // 2 - 1, -1, -1):
        sift_down(state, i)


@kernel(INT(STATE, INT), forceinline=True)
def lowest_scored(state, scored):  # type: ignore[no-untyped-def]
    """Place of the lowest of the `scored` leaves at the end of `leaves`, -1 if there is none."""
    top = len(state.leaves)
    best = np.int64(-1)
    for place in range(top - 1, top - scored - 1, -1):
        if best < 0 or precedes(state, place, best):
            best = np.int64(place)
    return best


@kernel(INT(STATE, types.float64))
def sample_leaf(state, now):  # type: ignore[no-untyped-def]
    """Where there are very many leaves: the lowest of a sample."""
    head = state.head[0]
    random = head.random
    best, lowest = np.int64(state.leaves[0]), np.inf
    for _ in range(SAMPLE):
        random = next_state(random)
        e = np.int64(state.leaves[np.int64((random >> np.uint64(33)) % np.uint64(head.leaves))])
        score = worth_of(state, e, now)
        if score < lowest:
            best, lowest = e, score
    head.random = random
    return best
