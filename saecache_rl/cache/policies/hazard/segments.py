"""Segments: maximal runs of a released chain whose blocks have the same standing, the unit that is learned from.

Blocks of one run have equal buckets of lineages and of accesses, and are all seen for the first time or all known, all
generated or none: 2 to 6 runs a request. The next use of a segment is the next request whose chain has its deepest
block.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types

from saecache_rl.cache.fingerprints import home
from saecache_rl.cache.ghosts import fingerprint_of
from saecache_rl.cache.heap import push, remove
from saecache_rl.cache.layout import CACHE, GENERATED, INT, SLOTS
from saecache_rl.cache.lazy import GROUPED
from saecache_rl.cache.policies.hazard import features as f
from saecache_rl.cache.policies.hazard.entries import (
    drop_curve,
    drop_if_unheld,
    ends_segment,
    enlist_chain,
    find,
    recall,
    remember,
    unlist_chain,
)
from saecache_rl.cache.policies.hazard.index import make_curve
from saecache_rl.cache.policies.hazard.layout import (
    AHEAD,
    BY_HAZARD,
    BY_RELEASE,
    DEEPEST,
    REALS,
    STATE,
    TOO_LATE,
    UNUSED,
)
from saecache_rl.cache.policies.hazard.learner import predict
from saecache_rl.compiled import kernel
from saecache_rl.handles import prefetch, square_root

#: A lineage goes on through a block that had at most so many accesses …
FEW = 60
#: … if the prompt covers this part of the lineage's last prompt, but for one block.
COVERED = 0.9
#: What the averages of ln gap and of ln interval keep at each step.
GAP_KEPT = 0.6
INTERVAL_KEPT = 0.7
#: Requests that the mean length of a request looks back on.
MEMORY = 4000


@kernel(types.int64(types.float64), forceinline=True)
def group_of(age):  # type: ignore[no-untyped-def]
    """Group of an age in seconds; TOO_LATE beyond the last."""
    if age < 0.5:
        return 0
    return min((1 + int(3.0 * math.log(2.0 * age))) >> 1, TOO_LATE)


@kernel(types.void(STATE, INT, types.float64), forceinline=True)
def mark_used(state, e, now):  # type: ignore[no-untyped-def]
    """A request has an entry's block: if a segment ends in it, that is the segment's next use."""
    if ends_segment(state, e):
        segment = state.segments[state.entries[e].segment % len(state.segments)]
        if segment.used == UNUSED:
            segment.used = group_of(now - segment.time)


@kernel(INT(STATE, INT, INT), forceinline=True)
def request_before(state, known, prompt_blocks):  # type: ignore[no-untyped-def]
    """Place of a segment of the request that this one continues, -1 if it begins a lineage.

    `known` blocks of its prompt were known before; the last of them was touched last by the request in question.
    """
    if known == 0:
        return -1
    entry = state.entries[state.chain[known - 1]]
    if entry.segment < 0 or entry.count > FEW or entry.lineages > 1:
        return -1
    place = entry.segment % len(state.segments)
    segment = state.segments[place]
    if segment.number != entry.segment or known < COVERED * segment.length - 1.0:
        return -1
    return place


@kernel(INT(CACHE, STATE, SLOTS, INT), forceinline=True)
def look_up(cache, state, chain, size):  # type: ignore[no-untyped-def]
    """Write the entries of a chain to ``state.chain``, -1 where not known; return how many of the prompt are."""
    known = 0
    prompt = min(cache.request[0].prompt_blocks, size)
    mask = len(state.table) - 1
    for i in range(size):
        if i + AHEAD < size:
            later = chain[i + AHEAD]
            e = np.int64(state.slots[later].entry)
            if e >= 0:
                prefetch(state.entries, e)
            else:
                prefetch(state.table, home(fingerprint_of(cache, cache.blocks[later].identity), mask))
        e = np.int64(state.slots[chain[i]].entry)
        fingerprint = fingerprint_of(cache, cache.blocks[chain[i]].identity)
        if e >= 0 and state.entries[e].fingerprint != fingerprint:  # the slot lost its block without an eviction
            state.slots[chain[i]].entry = -1
            state.entries[e].copies -= 1
            drop_if_unheld(state, e)
            e = np.int64(-1)
        if e < 0:
            e = find(state, fingerprint)
        state.chain[i] = e
        if e >= 0 and i < prompt:
            known = i + 1
    return known


class Asking(NamedTuple):
    """What all segments of a request share."""

    size: Any  # int64, blocks of its chain
    prompt: Any  # int64, of its prompt
    known: Any  # int64, how many of these were known
    fresh: Any  # int64, how many were not
    turn: Any  # int64, in its lineage
    gap: Any  # float64, seconds since the lineage's request before; nan: none
    log_gap: Any  # float64, exponential average of its logarithm
    gap_before: Any  # int64, level of the gap before this one
    since: Any  # float64, seconds since its lineage began; nan: now
    now: Any  # float64, seconds of its access


_INT, _REAL = types.int64, types.float64
ASKING = types.NamedTuple((_INT, _INT, _INT, _INT, _INT, _REAL, _REAL, _INT, _REAL, _REAL), Asking)


@kernel(types.void(CACHE, STATE, SLOTS, ASKING, INT, INT, INT, types.float64, REALS))
def _make(cache, state, chain, asking, start, end, generated, interval, reals):  # type: ignore[no-untyped-def]
    """Make the segment of ``state.chain[start:end]`` and give its blocks its curve."""
    head = state.head[0]
    request = cache.request[0]
    number = head.segments
    head.segments += 1
    place = number % len(state.segments)
    size = asking.size
    deepest = np.int64(state.chain[end - 1])
    entries = state.entries
    entry = entries[deepest]
    segment = state.segments[place]
    segment.number = number
    segment.time = asking.now
    segment.entry = deepest
    segment.length = asking.prompt
    segment.weight = (end - start) / size * square_root(size / head.mean_length)
    segment.since = 0.0 if math.isnan(asking.since) else asking.since
    segment.log_gap = asking.log_gap
    segment.turn = asking.turn
    segment.used = UNUSED
    levels = state.levels
    levels[place, f.LINEAGES] = f.lineages_level(entry.lineages)
    levels[place, f.COUNT] = f.size_level(entry.count)
    levels[place, f.INTERVAL] = f.log_seconds_level(f.log_of(interval))
    levels[place, f.MEAN_INTERVAL] = f.log_seconds_level(entry.log_interval)
    levels[place, f.PLACE] = (1 if entry.count == 1 else 0) + (2 if end == size else 0)
    levels[place, f.OFFSET] = f.size_level(end - 1)
    levels[place, f.DISTANCE] = f.size_level(size - end)
    levels[place, f.SIZE] = f.size_level(end - start)
    levels[place, f.TYPE] = cache.blocks[chain[end - 1]].token_type
    levels[place, f.GENERATED] = generated
    for level in range(f.TURN, f.GENERATED):
        levels[place, level] = 0
    if entry.lineages <= 2:
        levels[place, f.TURN] = f.turn_level(asking.turn)
        levels[place, f.FINISH] = (
            1 + 7 * request.ended_for_tool + cache.blocks[chain[max(asking.prompt, 1) - 1]].token_type
        )
        levels[place, f.NEW] = 1 + f.size_level(asking.fresh)
        levels[place, f.LENGTH] = 1 + f.size_level(asking.prompt)
        levels[place, f.MATCHED] = f.matched_level(asking.known / max(asking.prompt, 1))
        levels[place, f.GAP] = 1 + f.log_seconds_level(f.log_of(asking.gap))
        levels[place, f.MEAN_GAP] = 1 + f.log_seconds_level(asking.log_gap)
        levels[place, f.GAP_BEFORE] = asking.gap_before
        levels[place, f.OUTPUT] = 1 + f.size_level(request.output_tokens)
        levels[place, f.SINCE] = 1 + f.log_seconds_level(f.log_of(asking.since))
    levels[place, f.FORESIGHT] = 0
    if head.foresight == 1:
        at = request.prompt_start + end - 1
        if end > asking.prompt:
            at = cache.future[len(cache.future) - 1] + request.generated_start + end - 1 - asking.prompt
        levels[place, f.FORESIGHT] = cache.future[at]
    cold = predict(state, reals, place)
    head.free_curves -= 1
    curve = state.curve_free[head.free_curves]
    make_curve(state.hazard, head.index, cold, state.curves, curve)
    state.holders[curve] = end - start
    release = cache.pool[0].release
    cls = BY_HAZARD if head.by_hazard == 1 else BY_RELEASE
    key = np.float64(GROUPED - number if head.by_hazard == 1 else release)
    dropped, times = np.int64(-1), np.int64(0)
    for i in range(start, end):
        entry = entries[state.chain[i]]
        if entry.curve != dropped:
            drop_curve(state, dropped, times)
            dropped, times = np.int64(entry.curve), np.int64(0)
        times += 1
        entry.curve = curve
        entry.segment = number
        entry.flags &= 255 - DEEPEST
        block = cache.blocks[chain[i]]
        block.cls = cls
        block.key = key
        state.slots[chain[i]].release = release
    entries[deepest].flags |= DEEPEST
    drop_curve(state, dropped, times)


@kernel(types.void(CACHE, INT))
def _look_again(cache, identity):  # type: ignore[no-untyped-def]
    """What was known of the scores of a block's copies holds no more, as it was accessed."""
    slot = cache.first[identity]
    while slot >= 0:
        block = cache.blocks[slot]
        if block.position >= 0 and block.cls == BY_HAZARD:
            remove(cache.blocks, cache.heaps, cache.arena, slot)
            push(cache.blocks, cache.heaps, cache.arena, slot)
        slot = block.next_copy


@kernel(types.void(CACHE, STATE, SLOTS, INT, INT, INT, types.float64, REALS))
def record(cache, state, chain, size, known, before, now, reals):  # type: ignore[no-untyped-def]
    """A request is over: bring its blocks' entries up to date, and make its segments and their curves.

    Args:
        chain: its slots, ``chain[:size]``; their entries stand in ``state.chain``, -1 for blocks not known.
        known: blocks of its prompt that were known.
        before: place of a segment of the request that it continues, -1: none.
        now: seconds of its access.
    """
    head = state.head[0]
    entries = state.entries
    request = cache.request[0]
    prompt = min(request.prompt_blocks, size)
    turn, gap, log_gap, gap_before, since = 0, math.nan, math.nan, np.int64(1), math.nan
    if before >= 0:
        last = state.segments[before]
        lineage = np.int64(entries[state.chain[known - 1]].lineage)
        turn = min(last.turn + 1, 65535)
        # A lineage goes on through blocks that one lineage has had, so that the level is set.
        gap_before = np.int64(state.levels[before, f.GAP])
        gap = now - last.time
        since = last.since + gap
        log_gap = f.log_of(gap)
        if not math.isnan(last.log_gap):
            log_gap = GAP_KEPT * last.log_gap + (1.0 - GAP_KEPT) * log_gap
    else:
        lineage = head.lineages
        head.lineages = (head.lineages + 1) & 0x7FFFFFFF
    head.requests += 1
    head.mean_length += (size - head.mean_length) / min(head.requests, MEMORY)
    fresh = 0
    deeper = np.int64(-1)
    for i in range(known - 1, -1, -1):
        if state.chain[i] >= 0:
            deeper = np.int64(state.chain[i])
        else:
            state.chain[i] = recall(state, fingerprint_of(cache, cache.blocks[chain[i]].identity), deeper)
    for i in range(size):
        e = np.int64(state.chain[i])
        if e >= 0:
            mark_used(state, e, now)
        elif i < prompt:
            fresh += 1
    unlist_chain(state, size)
    asking = Asking(size, prompt, known, fresh, turn, gap, log_gap, gap_before, since, now)
    start = 0
    standing = -1
    interval = math.nan
    time, log_interval = math.nan, math.nan
    lineages, count, made = np.int64(-1), np.int64(-1), np.int64(-1)
    for i in range(size):
        slot = chain[i]
        e = np.int64(state.chain[i])
        this_interval = math.nan
        if e < 0:
            e = remember(state, fingerprint_of(cache, cache.blocks[slot].identity))
            state.chain[i] = e
        entry = entries[e]
        if state.slots[slot].entry < 0:
            state.slots[slot].entry = e
            entry.copies += 1
        if entry.count > 0:
            this_interval = now - entry.time
            if entry.time != time:  # mostly that of the block before
                time = entry.time
                log_interval = f.log_of(this_interval)
            log = log_interval
            if not math.isnan(entry.log_interval):
                log = INTERVAL_KEPT * entry.log_interval + (1.0 - INTERVAL_KEPT) * log
            entry.log_interval = log
        if entry.lineage != lineage or entry.count == 0:
            entry.lineage = lineage
            if entry.lineages < 255:
                entry.lineages += 1
        if entry.count < 65535:
            entry.count += 1
        entry.time = now
        block = cache.blocks[slot]
        if block.next_copy >= 0 or cache.first[block.identity] != slot:
            _look_again(cache, block.identity)
        generated = np.int64(block.flags & GENERATED != 0)
        stands = standing
        if entry.lineages != lineages or entry.count != count or generated != made:
            lineages, count, made = np.int64(entry.lineages), np.int64(entry.count), generated
            stands = (f.lineages_level(lineages) << 8) | (f.size_level(count) << 1) | generated
        if i > 0 and stands != standing:
            _make(cache, state, chain, asking, start, i, standing & 1, interval, reals)
            start = i
        standing = stands
        interval = this_interval
    _make(cache, state, chain, asking, start, size, standing & 1, interval, reals)
    enlist_chain(state, size)
