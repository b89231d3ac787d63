"""The guard: the order in force is LRU's, or the index's where much is to be gained and nothing was lost by it.

The shadow LRU is the recent part of the list of known blocks (`entries`). With the index in force the pool itself is
compared with it; with LRU in force a shadow of the index is: a directory that begins as the pool was, keeps its own
leaves, scores and evicts as the pool would. Both are metadata alone.

Decayed over a window: R, LRU's regret: blocks of prompts that the policy knew and the shadow LRU did not hold; S, the
squares of R's steps; D, the hits of the index less those of the shadow LRU; B, the blocks asked for; Q, the squares of
D's steps; G, the part of D that came while the index was in force; F, the times that the index lost its budget. The
policy starts with LRU. There is much to gain where R >= regret B, a large part of the traffic, or R^2 >= misses S, many
misses of a typical size. Then the index comes into force if D >= 0, and D > margin B + doubt F sqrt(Q) after a loss; it
goes when D < 0 and G < -loss B, or R has fallen below half of what it took.
"""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.heap import push, remove
from saecache_rl.cache.layout import CACHE, INT, SLOTS
from saecache_rl.cache.policies.hazard.entries import drop_if_unheld
from saecache_rl.cache.policies.hazard.layout import BY_HAZARD, BY_RELEASE, IN_LRU, IN_SHADOW, STATE
from saecache_rl.cache.policies.hazard.leaves import (
    add_leaf,
    floor_of,
    lowest_scored,
    precedes,
    remove_leaf,
    sample_leaf,
    set_floors,
    sift_down,
    worth_of,
)
from saecache_rl.cache.victims import EXACT_LIMIT
from saecache_rl.compiled import kernel

# Places in `cache.params`, behind the learner's.
WINDOW, MARGIN, DOUBT, LOSS, REGRET, MISSES = 3, 4, 5, 6, 7, 8
#: The index stays while LRU's regret is at least this share of what it took.
STAYS = 0.5


@kernel(INT(STATE, INT, INT), forceinline=True)
def leading(state, size, flag):  # type: ignore[no-untyped-def]
    """Length of the leading run of ``state.chain[:size]`` that a shadow holds."""
    hits = 0
    while hits < size and state.chain[hits] >= 0 and state.entries[state.chain[hits]].flags & flag:
        hits += 1
    return hits


@kernel(INT(CACHE, STATE, SLOTS, INT), forceinline=True)
def held_before(cache, state, chain, size):  # type: ignore[no-untyped-def]
    """Length of the leading run of ``chain[:size]`` that the pool held when its request came."""
    hits = 0
    while hits < size:
        block = cache.blocks[chain[hits]]
        # Inserted for this request, unless there was an older copy.
        if block.count <= 1 and cache.first[block.identity] == chain[hits]:
            break
        hits += 1
    return hits


@kernel(types.void(CACHE, STATE, INT))
def _order_pool(cache, state, cls):  # type: ignore[no-untyped-def]
    """Give every block of the pool the class of the order that is in force from now on."""
    cache.pool[0].version += 1
    for slot in range(len(cache.blocks)):
        block = cache.blocks[slot]
        if block.cls > BY_RELEASE:  # a class that a live engine has added
            continue
        candidate = block.position >= 0
        if candidate:
            remove(cache.blocks, cache.heaps, cache.arena, slot)
        block.cls = cls
        # Whoever gets a key by hazard here has no equal: equal keys in a chain mean equal scores.
        block.key = state.slots[slot].release if cls == BY_RELEASE else np.nan
        if candidate:
            push(cache.blocks, cache.heaps, cache.arena, slot)


@kernel(types.void(CACHE, STATE))
def _begin_shadow(cache, state):  # type: ignore[no-untyped-def]
    """Let the shadow hold what the pool holds."""
    head = state.head[0]
    entries = state.entries
    for slot in range(len(cache.blocks)):
        e = np.int64(state.slots[slot].entry)
        if e < 0 or entries[e].flags & IN_SHADOW:
            continue
        entries[e].flags |= IN_SHADOW
        entries[e].children = 0
        head.shadow_held += 1
    for slot in range(len(cache.blocks)):
        e = np.int64(state.slots[slot].entry)
        if e < 0 or cache.first[cache.blocks[slot].identity] != slot:
            continue
        parent = np.int64(cache.parent[cache.blocks[slot].identity])
        entries[e].parent = -1
        if parent >= 0 and cache.first[parent] >= 0:
            above = np.int64(state.slots[cache.first[parent]].entry)
            if above >= 0:
                entries[e].parent = above
                entries[above].children += 1
    head.floors_until = -1.0
    for slot in range(len(cache.blocks)):
        e = np.int64(state.slots[slot].entry)
        if e >= 0 and entries[e].flags & IN_SHADOW and entries[e].children == 0 and entries[e].leaf < 0:
            add_leaf(state, e)


@kernel(types.void(STATE))
def _end_shadow(state):  # type: ignore[no-untyped-def]
    """Let the shadow hold nothing."""
    head = state.head[0]
    for place in range(head.leaves):
        state.entries[state.leaves[place]].leaf = -1
    head.leaves = 0
    head.shadow_held = 0
    for e in range(len(state.entries)):
        if state.entries[e].fingerprint >= 0 and state.entries[e].flags & IN_SHADOW:
            state.entries[e].flags &= 255 - IN_SHADOW
            drop_if_unheld(state, e)


@kernel(types.void(CACHE, STATE, SLOTS, INT, INT))
def judge(cache, state, chain, prompt, known):  # type: ignore[no-untyped-def]
    """Count what the index and the shadow LRU hit of a request's ``prompt`` blocks, ``known`` of which were known."""
    head = state.head[0]
    kept = 1.0 - 1.0 / cache.params[WINDOW]
    hits = held_before(cache, state, chain, prompt) if head.by_hazard == 1 else leading(state, prompt, IN_SHADOW)
    by_lru = leading(state, prompt, IN_LRU)
    gained = hits - by_lru
    missed = np.float64(max(min(known, prompt) - by_lru, 0))
    head.advantage = kept * head.advantage + gained
    head.given = kept * head.given + (gained if head.by_hazard == 1 else 0)
    head.asked = kept * head.asked + prompt
    head.noise = kept * head.noise + gained * gained
    head.regret = kept * head.regret + missed
    head.misses = kept * head.misses + missed * missed
    head.falls *= kept


@kernel(types.boolean(CACHE, STATE, types.float64), forceinline=True)
def _much_to_gain(cache, state, share):  # type: ignore[no-untyped-def]
    """Whether LRU's regret is at least `share` of what it takes to put the index in force."""
    head = state.head[0]
    if head.regret >= share * cache.params[REGRET] * head.asked:
        return True
    return head.regret * head.regret > share * cache.params[MISSES] * head.misses


@kernel(types.void(CACHE, STATE))
def choose(cache, state):  # type: ignore[no-untyped-def]
    """Choose the order in force from now on. The request that was judged is over, in the pool and the shadows."""
    head = state.head[0]
    if head.by_hazard == 1:
        lost = head.advantage < 0.0 and head.given < -cache.params[LOSS] * head.asked
        if lost:
            head.falls += 1.0
        if lost or not _much_to_gain(cache, state, STAYS):
            head.by_hazard = 0
            head.switches += 1
            _begin_shadow(cache, state)
            _order_pool(cache, state, BY_RELEASE)
        return
    # What was lost decays, and with it what it takes to come back.
    lead = min(head.falls, 1.0) * cache.params[MARGIN] * head.asked
    lead += cache.params[DOUBT] * head.falls * np.sqrt(head.noise)
    if head.advantage >= lead and _much_to_gain(cache, state, 1.0):
        head.by_hazard = 1
        head.switches += 1
        _end_shadow(state)
        _order_pool(cache, state, BY_HAZARD)


@kernel(INT(STATE, INT, INT), forceinline=True)
def _evict(state, e, kept):  # type: ignore[no-untyped-def]
    """Drop a block from the shadow. Return its parent if that is a leaf now and not the one that is kept, else -1."""
    entry = state.entries[e]
    parent = np.int64(entry.parent)
    entry.flags &= 255 - IN_SHADOW
    state.head[0].shadow_held -= 1
    drop_if_unheld(state, e)
    if parent < 0:
        return np.int64(-1)
    state.entries[parent].children -= 1
    if state.entries[parent].children > 0 or parent == kept:
        return np.int64(-1)
    return parent


@kernel(types.void(STATE, INT, INT, types.float64))
def make_room(state, size, hits, now):  # type: ignore[no-untyped-def]
    """Evict from the shadow what the blocks ``state.chain[hits:size]`` need; ``state.chain[:hits]`` stays."""
    head = state.head[0]
    kept = np.int64(state.chain[hits - 1]) if hits > 0 else np.int64(-1)
    if kept >= 0 and state.entries[kept].leaf >= 0:
        remove_leaf(state, kept)
    # One block of the pool goes to the partial last block of a request.
    need = size - hits + head.shadow_held - max(len(state.slots) - 1, 1)
    if need <= 0:
        return
    if head.leaves > EXACT_LIMIT:
        while need > 0 and head.leaves > 0:
            e = sample_leaf(state, now)
            remove_leaf(state, e)
            parent = _evict(state, e, kept)
            need -= 1
            if parent >= 0:
                add_leaf(state, parent)
        return
    if now > head.floors_until:
        set_floors(state, now)
    # Leaves that are scored stand at the end of `leaves`, the first last, out of the heap.
    top = len(state.leaves)
    scored = 0
    while need > 0:
        best = lowest_scored(state, scored)
        while head.leaves > 0:
            e = np.int64(state.leaves[0])
            if state.scores[0] == -np.inf:
                state.scores[0] = floor_of(state, e, now)
                sift_down(state, 0)
                continue
            if best >= 0 and state.scores[0] > state.scores[best]:
                break
            remove_leaf(state, e)
            scored += 1
            state.leaves[top - scored] = e
            state.scores[top - scored] = worth_of(state, e, now)
            head.looked += 1
            if best < 0 or precedes(state, top - scored, best):
                best = top - scored
        if best < 0:
            break
        # The chain goes on while it scores below everything else.
        limit = state.scores[0] if head.leaves > 0 else np.inf
        for place in range(top - scored, top):
            if place != best:
                limit = min(limit, state.scores[place])
        e = np.int64(state.leaves[best])
        segment = state.entries[e].segment
        while True:
            e = _evict(state, e, kept)
            need -= 1
            if e < 0:
                break
            state.leaves[best] = e
            if state.entries[e].segment != segment:
                segment = state.entries[e].segment
                state.scores[best] = worth_of(state, e, now)
            if need == 0 or not state.scores[best] < limit:
                break
        if e < 0:
            state.leaves[best] = state.leaves[top - scored]
            state.scores[best] = state.scores[top - scored]
            scored -= 1
    # From the lowest place on: the heap, which grows towards them, then never overwrites one that is still to come.
    for place in range(top - scored, top):
        add_leaf(state, np.int64(state.leaves[place]))


@kernel(types.void(STATE, INT, INT))
def admit(state, size, hits):  # type: ignore[no-untyped-def]
    """Insert ``state.chain[hits:size]`` into the shadow."""
    head = state.head[0]
    for i in range(hits, size):
        entry = state.entries[state.chain[i]]
        entry.flags |= IN_SHADOW
        entry.children = 0
        entry.parent = -1
        head.shadow_held += 1
        if i > 0:
            above = np.int64(state.chain[i - 1])
            if state.entries[above].leaf >= 0:
                remove_leaf(state, above)
            entry.parent = above
            state.entries[above].children += 1
    last = np.int64(state.chain[size - 1])
    if state.entries[last].children == 0 and state.entries[last].leaf < 0:
        add_leaf(state, last)
