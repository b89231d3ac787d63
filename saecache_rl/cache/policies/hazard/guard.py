"""The guard: two shadow directories, of LRU and of this policy, and the order in force taken from what they hit.

The shadow LRU is the recent part of the list of known blocks (`entries`). The shadow of this policy keeps its own
leaves, scores and evicts as the pool would. Both are metadata alone. With D the decayed hits of the shadow less those of
LRU, and B the decayed blocks asked for, the policy starts as LRU, goes over to the hazards' order when D > margin B,
and back when D < -margin B.
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.heap import push, remove
from saecache_rl.cache.layout import CACHE, INT
from saecache_rl.cache.policies.hazard.entries import drop_if_unheld
from saecache_rl.cache.policies.hazard.index import place_of, worth
from saecache_rl.cache.policies.hazard.layout import IN_LRU, IN_SHADOW, STATE
from saecache_rl.cache.victims import EXACT_LIMIT, SAMPLE
from saecache_rl.compiled import kernel

# Classes of candidates of the guarded policy.
BY_HAZARD, BY_RELEASE = 0, 1
# Places in `cache.params`, behind the learner's.
WINDOW, MARGIN = 3, 4


@kernel(INT(STATE, INT, INT), forceinline=True)
def leading(state, size, flag):  # type: ignore[no-untyped-def]
    """Length of the leading run of ``state.chain[:size]`` that a shadow holds."""
    hits = 0
    while hits < size and state.chain[hits] >= 0 and state.entries[state.chain[hits]].flags & flag:
        hits += 1
    return hits


@kernel(types.void(CACHE, STATE, INT))
def _switch(cache, state, cls):  # type: ignore[no-untyped-def]
    """Give every block of the pool the class of the order that is in force from now on."""
    head = state.head[0]
    head.by_hazard = 1 if cls == BY_HAZARD else 0
    head.switches += 1
    cache.pool[0].version += 1
    for slot in range(len(cache.blocks)):
        block = cache.blocks[slot]
        candidate = block.position >= 0
        if candidate:
            remove(cache.blocks, cache.heaps, cache.arena, slot)
        block.cls = cls
        block.key = state.slots[slot].release
        if candidate:
            push(cache.blocks, cache.heaps, cache.arena, slot)


@kernel(types.void(CACHE, STATE, INT))
def judge(cache, state, prompt):  # type: ignore[no-untyped-def]
    """Count what the shadows hit of a request's ``prompt`` blocks, and choose the order in force."""
    head = state.head[0]
    kept = 1.0 - 1.0 / cache.params[WINDOW]
    gained = leading(state, prompt, IN_SHADOW) - leading(state, prompt, IN_LRU)
    head.advantage = kept * head.advantage + gained
    head.asked = kept * head.asked + prompt
    enough = cache.params[MARGIN] * head.asked
    if head.by_hazard == 0 and head.advantage > enough:
        _switch(cache, state, BY_HAZARD)
    elif head.by_hazard == 1 and head.advantage < -enough:
        _switch(cache, state, BY_RELEASE)


@kernel(types.boolean(STATE, INT, INT), forceinline=True)
def _precedes(state, a, b):  # type: ignore[no-untyped-def]
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


@kernel(types.void(STATE, INT, INT))
def _sift_down(state, place, size):  # type: ignore[no-untyped-def]
    while True:
        below = 2 * place + 1
        if below >= size:
            return
        if below + 1 < size and _precedes(state, below + 1, below):
            below += 1
        if not _precedes(state, below, place):
            return
        _swap(state, place, below)
        place = below


@kernel(types.void(STATE, INT), forceinline=True)
def _add_leaf(state, e):  # type: ignore[no-untyped-def]
    """At the end: the order is made when victims are chosen."""
    head = state.head[0]
    state.leaves[head.leaves] = e
    state.entries[e].leaf = head.leaves
    head.leaves += 1


@kernel(types.void(STATE, INT), forceinline=True)
def _remove_leaf(state, e):  # type: ignore[no-untyped-def]
    """Whatever that does to the order."""
    head = state.head[0]
    head.leaves -= 1
    place = np.int64(state.entries[e].leaf)
    moved = state.leaves[head.leaves]
    state.leaves[place] = moved
    state.scores[place] = state.scores[head.leaves]
    state.entries[moved].leaf = place
    state.entries[e].leaf = -1


@kernel(types.float64(STATE, INT, types.float64), forceinline=True)
def _worth_of(state, e, now):  # type: ignore[no-untyped-def]
    entry = state.entries[e]
    return worth(state.curves, np.int64(entry.curve), place_of(now - entry.time))


@kernel(types.void(STATE, types.float64), forceinline=True)
def _order(state, now):  # type: ignore[no-untyped-def]
    """Score all leaves and make them a heap."""
    count = state.head[0].leaves
    time, place = -1.0, 0.0
    for i in range(count):
        entry = state.entries[state.leaves[i]]
        if entry.time != time:
            time = entry.time
            place = place_of(now - time)
        state.scores[i] = worth(state.curves, np.int64(entry.curve), place)
    for i in range(count // 2 - 1, -1, -1):
        _sift_down(state, i, count)


@kernel(types.void(STATE, types.float64), forceinline=True)
def _bring_to_front(state, now):  # type: ignore[no-untyped-def]
    """Where there are very many leaves: put the lowest of a sample at the heap's root."""
    head = state.head[0]
    random = head.random
    best, lowest = np.int64(0), np.inf
    for _ in range(SAMPLE):
        # Knuth's MMIX constants, as the pool's sampler has them.
        random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        place = np.int64((random >> np.uint64(33)) % np.uint64(head.leaves))
        score = _worth_of(state, np.int64(state.leaves[place]), now)
        if score < lowest:
            best, lowest = place, score
    head.random = random
    if best != 0:
        _swap(state, 0, best)


@kernel(types.void(STATE, INT, INT, types.float64))
def make_room(state, size, hits, now):  # type: ignore[no-untyped-def]
    """Evict from the shadow what the blocks ``state.chain[hits:size]`` need; ``state.chain[:hits]`` stays."""
    head = state.head[0]
    kept = np.int64(state.chain[hits - 1]) if hits > 0 else -1
    if kept >= 0 and state.entries[kept].leaf >= 0:
        _remove_leaf(state, kept)
    # One block of the pool goes to the partial last block of a request.
    need = size - hits + head.shadow_held - max(len(state.slots) - 1, 1)
    if need <= 0:
        return
    sampled = head.leaves > EXACT_LIMIT
    if not sampled:
        _order(state, now)
    while need > 0 and head.leaves > 0:
        if sampled:
            _bring_to_front(state, now)
        e = np.int64(state.leaves[0])
        entry = state.entries[e]
        parent = np.int64(entry.parent)
        entry.flags &= 255 - IN_SHADOW
        entry.leaf = -1
        head.shadow_held -= 1
        need -= 1
        bare = False
        if parent >= 0:
            state.entries[parent].children -= 1
            bare = state.entries[parent].children == 0 and parent != kept
        if bare:
            state.leaves[0] = parent
            state.entries[parent].leaf = 0
            if not sampled:
                state.scores[0] = _worth_of(state, parent, now)
        else:
            head.leaves -= 1
            if head.leaves > 0:
                moved = state.leaves[head.leaves]
                state.leaves[0] = moved
                state.scores[0] = state.scores[head.leaves]
                state.entries[moved].leaf = 0
        if not sampled:
            _sift_down(state, 0, head.leaves)
        drop_if_unheld(state, e)


@kernel(types.void(STATE, INT, INT))
def admit(state, size, hits):  # type: ignore[no-untyped-def]
    """Insert ``state.chain[hits:size]`` into the shadow."""
    head = state.head[0]
    for i in range(hits, size):
        e = np.int64(state.chain[i])
        entry = state.entries[e]
        entry.flags |= IN_SHADOW
        entry.children = 0
        entry.parent = state.chain[i - 1] if i > 0 else -1
        if i > 0:
            state.entries[state.chain[i - 1]].children += 1
        head.shadow_held += 1
    last = np.int64(state.chain[size - 1])
    if state.entries[last].children == 0 and state.entries[last].leaf < 0:
        _add_leaf(state, last)
