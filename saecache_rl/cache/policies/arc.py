"""ARC: recency and frequency in lists whose shares adapt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.ghosts import fingerprint_of
from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, ON_EVICT, ON_RELEASE
from saecache_rl.cache.policies.chosen import CHOSEN, head_of, score_chosen
from saecache_rl.cache.policies.columns import column, is_new
from saecache_rl.cache.policies.history import (
    FIRST,
    HISTORY,
    SECOND,
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

# cache.ints: the chosen slot, sizes of T1 and T2, new blocks of the request that is being served; then a column and the
# ghosts, B1 being the history's FIRST list and B2 its SECOND.
SIZE, COMING = 0, 3  # SIZE + the list
HEAD = 4
LIST = 0  # column: 1 or 2 for T1 or T2, 0: none; the class is one less
COLUMNS = 1
TARGET = 0  # cache.reals: p, the size that T1 is to have


@kernel(types.void(CACHE, INT, INT))
def relist(cache, slot, to):  # type: ignore[no-untyped-def]
    """Count a slot for another list; 0: for none."""
    lists = column(cache, HEAD, LIST)
    if lists[slot] > 0:
        cache.ints[SIZE + lists[slot]] -= 1
    if to > 0:
        cache.ints[SIZE + to] += 1
    lists[slot] = to


@kernel(types.void(CACHE, HISTORY))
def bound(cache, history):  # type: ignore[no-untyped-def]
    """At most N in T1 and B1 together, 2 N in all four; the least recent ghosts go."""
    blocks = len(cache.blocks)
    recent, frequent = cache.ints[SIZE + 1], cache.ints[SIZE + 2]
    trim(history, FIRST, blocks - recent)
    trim(history, SECOND, 2 * blocks - recent - frequent - history.lists[FIRST].size)


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """What is hit belongs to T2. Each ghost among the missed moves p towards its list, and will enter T2."""
    blocks = len(cache.blocks)
    lists = column(cache, HEAD, LIST)
    for i in range(hits):
        if lists[chain[i]] == 1:
            relist(cache, chain[i], 2)
    history = history_at(cache, HEAD + COLUMNS * blocks)
    coming = 0
    for i in range(len(missed)):
        ghost = recall(history, fingerprint_of(cache, missed[i]))
        if ghost < 0:
            coming += 1
            continue
        first, second = np.float64(history.lists[FIRST].size), np.float64(history.lists[SECOND].size)
        if history.records[ghost].list == FIRST:
            cache.reals[TARGET] = min(cache.reals[TARGET] + max(second / first, 1.0), np.float64(blocks))
        elif history.records[ghost].list == SECOND:
            cache.reals[TARGET] = max(cache.reals[TARGET] - max(first / second, 1.0), 0.0)
        want(history, ghost, blocks)
    cache.ints[COMING] = coming


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """New blocks enter T1, or T2 if they had a ghost; all are now the most recent of their list."""
    lists = column(cache, HEAD, LIST)
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    cache.ints[COMING] = 0
    for i in range(size):
        slot = chain[i]
        block = cache.blocks[slot]
        if is_new(block, lists[slot]):
            relist(cache, slot, 2 if claim(history, fingerprint_of(cache, block.identity)) >= 0 else 1)
        block.cls = lists[slot] - 1
        block.key = cache.pool[0].release
    bound(cache, history)


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Choose: T1's least recent if T1 is larger than p, else T2's. What was chosen leaves a ghost."""
    ints = cache.ints
    if size == 0:
        recent, frequent = head_of(cache, 0), head_of(cache, 1)
        from_first = ints[SIZE + 1] + ints[COMING] > cache.reals[TARGET]
        ints[CHOSEN] = recent if recent >= 0 and (from_first or frequent < 0) else frequent
        return
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    for i in range(size):
        slot = victims[i]
        identity = cache.blocks[slot].identity
        was = column(cache, HEAD, LIST)[slot]
        relist(cache, slot, 0)
        if was > 0 and cache.first[identity] < 0:
            note(history, fingerprint_of(cache, identity), FIRST if was == 1 else SECOND)
            bound(cache, history)


class ARC(Policy):
    """Adaptive replacement cache (Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003).

    T1 holds what was used once since it came in, T2 what was used more often, each by recency; B1 and B2 are ghosts of
    what was evicted from them. A miss of a ghost in B1 raises p, the size that T1 is to have, by max(|B2| / |B1|, 1),
    one in B2 lowers it by max(|B1| / |B2|, 1); both enter T2. T1's least recent goes while |T1| > p, else T2's.
    |T1| + |B1| <= N, and all four together hold at most 2 N. No parameters.

    What the pool changes: the least recent is the least recent leaf, and where a list has none the other gives the
    victim. A request's misses all move p before its victims are chosen, and its new blocks count for T1 from the start;
    ARC's rule for |T1| = p, which looks at the one page that is missed, then has no meaning. What a reply adds enters
    T1, whatever ghost it has, since nobody asked for it. A spare copy leaves no ghost.
    """

    name = "arc"
    stepwise = True

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score_chosen, on_access=on_access, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[int, ...]:
        """T1 and T2, ordered by release."""
        return (True, True)

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """p; the lists' sizes, each slot's list, and the ghosts."""
        columns = np.zeros(HEAD + COLUMNS * num_blocks, np.int64)
        return np.zeros(1, np.float64), np.concatenate([columns, empty_history(3 * num_blocks + 1)])
