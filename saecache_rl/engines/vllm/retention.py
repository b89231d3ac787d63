"""Soft retention: a block's rank while a client's hint lasts, beside any policy.

One class of candidates is added after the policy's own. In it, blocks that the client will not use again go before
everything, and blocks that it wants kept go after everything else, lower priority first, then the earlier end. A
hint moves a rank and never pins: when nothing else is left, retained blocks are evicted like others. While the class is
empty, a choice of victims does not see it and costs nothing more.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types

from saecache_rl.cache.heap import push, remove
from saecache_rl.cache.layout import CACHE, INT, SCORE
from saecache_rl.compiled import kernel
from saecache_rl.handles import array_at, function_at

#: Score of a retained block at priority 0; above any policy's score.
RETAINED = 1e290
#: Key: priority x this + seconds at which the retention ends. Seconds stay below it.
STEP = 1e10
#: Seconds after which the slots are searched for blocks without reuse that are gone.
LOOK_AGAIN = 60.0


class Retention(NamedTuple):
    """What hints say of each slot."""

    seconds: Any  # (N,) float64, how long a real hit keeps it; 0: no hint
    until: Any  # (N,) float64, when that ends
    priority: Any  # (N,) int32, 0 to 99; -1: no reuse
    plain_key: Any  # (N,) float64, key and class as the policy set them
    plain_cls: Any  # (N,) uint8
    next_end: Any  # (1,) float64, no retention ends before this; infinite: no slot is in the added class


RETENTION = types.NamedTuple(
    (
        types.float64[::1],
        types.float64[::1],
        types.int32[::1],
        types.float64[::1],
        types.uint8[::1],
        types.float64[::1],
    ),
    Retention,
)
RETENTION_WORDS = 2 * len(Retention._fields)
_ints, _bytes, _reals = array_at(types.int32[::1]), array_at(types.uint8[::1]), array_at(types.float64[::1])
_score = function_at(SCORE)


def make_retention(num_blocks: int) -> Retention:
    """No hints for `num_blocks` slots."""
    return Retention(
        seconds=np.zeros(num_blocks),
        until=np.zeros(num_blocks),
        priority=np.zeros(num_blocks, np.int32),
        plain_key=np.zeros(num_blocks),
        plain_cls=np.zeros(num_blocks, np.uint8),
        next_end=np.array([math.inf]),
    )


def score_words(addresses: list[int]) -> Any:
    """The two addresses of the policy's own score, as they stand in `cache.future`, which no live policy reads."""
    return np.array(addresses, np.int64).view(np.int32)


@kernel(RETENTION(types.int64[::1]), forceinline=True)
def retention_at(handle):  # type: ignore[no-untyped-def]
    """The tables that the first words of a handle name."""
    h = handle
    return Retention(
        _reals(h[0], h[1]),
        _reals(h[2], h[3]),
        _ints(h[4], h[5]),
        _reals(h[6], h[7]),
        _bytes(h[8], h[9]),
        _reals(h[10], h[11]),
    )


@kernel(INT(CACHE, INT))
def _address(cache, which):  # type: ignore[no-untyped-def]
    low = np.int64(cache.future[2 * which]) & np.int64(0xFFFFFFFF)
    return (np.int64(cache.future[2 * which + 1]) << np.int64(32)) | low


@kernel(SCORE)
def score_with_hints(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """The policy's score; of the added class, minus infinity without reuse, else above every other score."""
    score = _score(_address(cache, 0), _address(cache, 1))
    score(cache, slots, size, scores)
    added = len(cache.heaps) - 1
    for i in range(size):
        block = cache.blocks[slots[i]]
        if block.cls == added:
            scores[i] = -math.inf if block.key < 0.0 else RETAINED * (1.0 + block.key)


@kernel(types.void(CACHE, RETENTION, INT, types.float64))
def retain(cache, retention, slot, now):  # type: ignore[no-untyped-def]
    """After the policy's own release of a slot: put it in the added class if a hint holds for it. No candidate yet."""
    block = cache.blocks[slot]
    if retention.priority[slot] >= 0 and not now < retention.until[slot]:
        return
    retention.plain_key[slot] = block.key
    retention.plain_cls[slot] = block.cls
    block.cls = len(cache.heaps) - 1
    if retention.priority[slot] < 0:
        block.key = -1.0
        retention.next_end[0] = min(retention.next_end[0], now + LOOK_AGAIN)
    else:
        block.key = retention.priority[slot] * STEP + min(retention.until[slot], STEP - 1.0)
        retention.next_end[0] = min(retention.next_end[0], retention.until[slot])


@kernel(types.void(CACHE, RETENTION, INT))
def restore(cache, retention, slot):  # type: ignore[no-untyped-def]
    """Before the policy looks at a slot in use: give it the key and class that the policy last set."""
    block = cache.blocks[slot]
    if block.cls == len(cache.heaps) - 1:
        block.key = retention.plain_key[slot]
        block.cls = retention.plain_cls[slot]


@kernel(types.void(CACHE, RETENTION, types.float64))
def end_retention(cache, retention, now):  # type: ignore[no-untyped-def]
    """Give blocks whose time is over back to the policy, under the key and class that it last set."""
    added = len(cache.heaps) - 1
    blocks = cache.blocks
    upcoming = math.inf
    for slot in range(len(blocks)):
        block = blocks[slot]
        if block.cls != added or block.identity < 0:
            continue
        if retention.priority[slot] < 0:
            upcoming = min(upcoming, now + LOOK_AGAIN)
            continue
        if now < retention.until[slot]:
            upcoming = min(upcoming, retention.until[slot])
            continue
        candidate = block.position >= 0
        if candidate:
            remove(blocks, cache.heaps, cache.arena, slot)
        block.key = retention.plain_key[slot]
        block.cls = retention.plain_cls[slot]
        if candidate:
            push(blocks, cache.heaps, cache.arena, slot)
    retention.next_end[0] = upcoming
