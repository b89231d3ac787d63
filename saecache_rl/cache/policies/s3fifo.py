"""S3-FIFO: a small queue that filters, a main queue that keeps, and ghosts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.ghosts import fingerprint_of
from saecache_rl.cache.heap import reclass
from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, ON_EVICT, ON_RELEASE
from saecache_rl.cache.params import Param, ParamSpace
from saecache_rl.cache.policies.chosen import CHOSEN, head_of, score_chosen
from saecache_rl.cache.policies.columns import column, is_new
from saecache_rl.cache.policies.history import (
    FIRST,
    claim,
    empty_history,
    history_at,
    note,
    recall,
    trim,
    want,
)
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

# cache.ints: the chosen slot, number of the latest entry into a queue, blocks of the small queue, new blocks of the
# request that is being served; then columns and the ghosts.
STAMP, SMALL_SIZE, COMING = 1, 2, 3
HEAD = 4
QUEUE, ENTERED, FREQUENCY = 0, 1, 2  # columns: the queue + 1 (0: none), when it entered it, hits since
COLUMNS = 3
SMALL, MAIN = 1, 2  # in the column; the class is one less
SHARE = 0  # cache.params
MOST_HITS = 3  # two bits
ENOUGH_HITS = 2
GHOSTS = 0.9


@kernel(types.void(CACHE, INT, INT))
def enter(cache, slot, queue):  # type: ignore[no-untyped-def]
    """Put a slot at the end of a queue, with the latest stamp; 0: out of both."""
    queues = column(cache, HEAD, QUEUE)
    if queues[slot] == SMALL:
        cache.ints[SMALL_SIZE] -= 1
    if queue == SMALL:
        cache.ints[SMALL_SIZE] += 1
    queues[slot] = queue
    stamp = cache.ints[STAMP]
    column(cache, HEAD, ENTERED)[slot] = stamp
    if queue > 0 and cache.blocks[slot].cls < MAIN:  # else, live, it is in a hint's class
        reclass(cache, slot, queue - 1, np.float64(stamp))


@kernel(types.void(CACHE, INT))
def promote(cache, slot):  # type: ignore[no-untyped-def]
    """Move a slot from the small to the main queue, and what stands before it in its chain with it."""
    queues, frequency = column(cache, HEAD, QUEUE), column(cache, HEAD, FREQUENCY)
    while slot >= 0 and queues[slot] == SMALL:
        enter(cache, slot, MAIN)
        frequency[slot] = 0
        parent = cache.parent[cache.blocks[slot].identity]
        slot = np.int64(cache.first[parent]) if parent >= 0 else np.int64(-1)


@kernel(types.void(CACHE))
def choose(cache):  # type: ignore[no-untyped-def]
    """Let the queues advance until a block is found that has to go."""
    ints = cache.ints
    queues, frequency = column(cache, HEAD, QUEUE), column(cache, HEAD, FREQUENCY)
    room = max(int(cache.params[SHARE] * len(cache.blocks)), 1)
    while True:
        small, main = head_of(cache, 0), head_of(cache, 1)
        if small >= 0 and queues[small] != SMALL:  # live, a hint gave it back under the class of before
            enter(cache, small, MAIN)
            continue
        if small >= 0 and (ints[SMALL_SIZE] + ints[COMING] >= room or main < 0):
            if frequency[small] < ENOUGH_HITS:
                ints[CHOSEN] = small
                return
            ints[STAMP] += 1
            promote(cache, small)
            continue
        ints[CHOSEN] = main
        if main < 0 or frequency[main] == 0:
            return
        frequency[main] -= 1
        ints[STAMP] += 1
        enter(cache, main, MAIN)


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Count the hits; ghosts among the missed will enter the main queue."""
    frequency = column(cache, HEAD, FREQUENCY)
    for i in range(hits):
        frequency[chain[i]] = min(frequency[chain[i]] + 1, MOST_HITS)
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    wanted = 0
    for i in range(len(missed)):
        ghost = recall(history, fingerprint_of(cache, missed[i]))
        if ghost >= 0:
            want(history, ghost, len(cache.blocks))
            wanted += 1
    cache.ints[COMING] = len(missed) - wanted


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """New blocks enter the small queue, or the main one if wanted; what stands before those in the chain as well."""
    ints = cache.ints
    queues, entered = column(cache, HEAD, QUEUE), column(cache, HEAD, ENTERED)
    frequency = column(cache, HEAD, FREQUENCY)
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    ints[COMING] = 0
    ints[STAMP] += 1
    in_main = False
    for i in range(size - 1, -1, -1):
        slot = chain[i]
        block = cache.blocks[slot]
        if is_new(block, queues[slot]):
            in_main |= claim(history, fingerprint_of(cache, block.identity)) >= 0
            frequency[slot] = 0
            enter(cache, slot, MAIN if in_main else SMALL)
        elif in_main:
            promote(cache, np.int64(slot))
        in_main |= queues[slot] == MAIN
        block.cls = queues[slot] - 1
        block.key = entered[slot]


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Choose, or take note of what was chosen: the small queue's victims leave ghosts."""
    if size == 0:
        choose(cache)
        return
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    for i in range(size):
        slot = victims[i]
        identity = cache.blocks[slot].identity
        if column(cache, HEAD, QUEUE)[slot] == SMALL and cache.first[identity] < 0:
            note(history, fingerprint_of(cache, identity), FIRST)
            trim(history, FIRST, int(GHOSTS * len(cache.blocks)))
        enter(cache, slot, 0)
        column(cache, HEAD, FREQUENCY)[slot] = 0


SPACE = ParamSpace((Param("small.share", 0.1, 0.01, 0.5, "log", "share of the blocks that the small queue may hold"),))


class S3FIFO(Policy):
    """S3-FIFO (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023).

    New blocks enter the small queue, a tenth of the pool. While that is full, its oldest goes: to the main queue if it
    was hit twice or more, else out, leaving a ghost; a block that is missed while it has a ghost enters the main queue
    at once. Otherwise the main queue's oldest goes, or goes round again for each of at most three hits. Hits are
    forgotten on the way to the main queue; as many ghosts as nine tenths of the pool.

    What the pool changes: the oldest is the oldest leaf. A block that enters the main queue takes those before it in
    its chain with it, which could not be evicted before it anyway and would fill the small queue. A request's new
    blocks count for the small queue's size from the start, and enter at its end, the deepest as the oldest. A spare
    copy leaves no ghost.
    """

    name = "s3fifo"
    stepwise = True

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score_chosen, on_access=on_access, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[int, ...]:
        """The small and the main queue, ordered by when a block entered."""
        return (True, True)

    def space(self) -> ParamSpace:
        """The small queue's share."""
        return SPACE

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The queues' sizes, each slot's place, and the ghosts."""
        history = empty_history(num_blocks + int(GHOSTS * num_blocks) + 1)
        return np.zeros(0, np.float64), np.concatenate([np.zeros(HEAD + COLUMNS * num_blocks, np.int64), history])
