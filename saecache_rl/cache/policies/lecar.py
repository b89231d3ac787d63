"""LeCaR: LRU and LFU as experts, weighed by regret."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.ghosts import fingerprint_of
from saecache_rl.cache.heap import precedes
from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, ON_EVICT, ON_RELEASE
from saecache_rl.cache.params import Param, ParamSpace
from saecache_rl.cache.policies.chosen import CHOSEN, head_of, score_chosen
from saecache_rl.cache.policies.columns import column, is_new
from saecache_rl.cache.policies.draws import checked_seed, draw
from saecache_rl.cache.policies.history import (
    FIRST,
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

#: Classes of candidates: one for each frequency, the last for all higher ones.
FREQUENCIES = 128
LRU, LFU = 0, 1
# cache.ints: the chosen slot, by whom it was chosen (-1: by both), block accesses so far, state of the generator; then
# a column and the history, what LRU evicted being its FIRST list, what LFU evicted its SECOND.
BY, CLOCK, RANDOM = 1, 2, 3
HEAD = 4
FREQUENCY = 0  # column: accesses, those before an eviction that is remembered included; 0: no block
COLUMNS = 1
WEIGHT = 0  # cache.reals: weight of LRU; LFU has the rest
RATE, LOG_DISCOUNT = 0, 1  # cache.params, cache.reals
LEAST_WEIGHT = 0.01
DISCOUNT = 0.005


@kernel(types.void(CACHE, INT, types.float64))
def regret(cache, expert, age):  # type: ignore[no-untyped-def]
    """An expert evicted what is missed `age` block accesses later: w *= exp(-rate * d^age), then normalise."""
    loss = cache.params[RATE] * math.exp(cache.reals[LOG_DISCOUNT] * age)
    lru, lfu = cache.reals[WEIGHT], 1.0 - cache.reals[WEIGHT]
    if expert == LRU:
        lru *= math.exp(-loss)
    else:
        lfu *= math.exp(-loss)
    cache.reals[WEIGHT] = min(max(lru / (lru + lfu), LEAST_WEIGHT), 1.0 - LEAST_WEIGHT)


@kernel(types.void(CACHE))
def choose(cache):  # type: ignore[no-untyped-def]
    """Draw an expert and take its victim; if both have the same, neither is to blame."""
    ints, blocks, heaps = cache.ints, cache.blocks, cache.heaps
    least_recent, least_frequent, lowest = np.int64(-1), np.int64(-1), np.int64(FREQUENCIES)
    for i in range(heaps[0].occupied):
        c = np.int64(heaps[i].listed)
        if c >= FREQUENCIES:  # live, a hint's class
            continue
        slot = head_of(cache, c)
        if least_recent < 0 or precedes(blocks, slot, least_recent):
            least_recent = slot
        if c < lowest:
            least_frequent, lowest = slot, c
    by_lru = draw(cache, RANDOM) < cache.reals[WEIGHT]
    ints[CHOSEN] = least_recent if by_lru else least_frequent
    ints[BY] = LRU if by_lru else LFU
    if least_recent == least_frequent:
        ints[BY] = -1


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Count the hits, and blame the expert that evicted what is missed."""
    frequency = column(cache, HEAD, FREQUENCY)
    for i in range(hits):
        if frequency[chain[i]] > 0:
            frequency[chain[i]] += 1
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    for i in range(len(missed)):
        record = recall(history, fingerprint_of(cache, missed[i]))
        if record < 0:
            continue
        age = np.float64(cache.ints[CLOCK] - history.records[record].time)
        if history.records[record].list == FIRST:
            regret(cache, LRU, age)
        elif history.records[record].list == SECOND:
            regret(cache, LFU, age)
        want(history, record, len(cache.blocks))


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """A block is in the class of its frequency, by recency there; a new one goes on from what is remembered of it."""
    frequency = column(cache, HEAD, FREQUENCY)
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    for i in range(size):
        slot = chain[i]
        block = cache.blocks[slot]
        if is_new(block, frequency[slot]):
            frequency[slot] = max(claim(history, fingerprint_of(cache, block.identity)), 0) + 1
        block.cls = min(frequency[slot], FREQUENCIES) - 1
        block.key = cache.pool[0].release
    cache.ints[CLOCK] += size


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Choose, or remember who chose what."""
    if size == 0:
        choose(cache)
        return
    ints = cache.ints
    frequency = column(cache, HEAD, FREQUENCY)
    history = history_at(cache, HEAD + COLUMNS * len(cache.blocks))
    for i in range(size):
        slot = victims[i]
        identity = cache.blocks[slot].identity
        if slot == ints[CHOSEN] and ints[BY] >= 0 and cache.first[identity] < 0:
            to = FIRST if ints[BY] == LRU else SECOND
            record = note(history, fingerprint_of(cache, identity), to)
            history.records[record].time = ints[CLOCK]
            history.records[record].count = frequency[slot]
            trim(history, to, len(cache.blocks) // 2)
        frequency[slot] = 0


SPACE = ParamSpace(
    (Param("rate", 0.45, 0.01, 2.0, "log", "how much an expert loses by a miss of what it just evicted"),)
)


class LeCaR(Policy):
    """LeCaR (Vietri et al., Driving cache replacement with ML-based LeCaR, HotStorage 2018).

    Each victim is LRU's with probability w, else LFU's (of equal frequency the least recent). Each expert has a history
    of N / 2 blocks that it evicted; a miss of one, t block accesses later, multiplies its weight by
    exp(-0.45 x 0.005^(t / N)), and the block comes back with the frequency it had. Weights are normalised and kept
    within 0.01 and 0.99. Where both have the same victim nobody is to blame. As the authors' own code has it
    (libCacheSim has one history of N for both, and new frequencies).

    What the pool changes: both experts choose among leaves; a request's misses all count before its victims are chosen;
    frequencies above 127 are one class, ordered by recency; a spare copy is not remembered. Draws come from a
    generator in the policy's state, started from `seed`.
    """

    name = "lecar"
    stepwise = True

    def __init__(self, seed: int = 0) -> None:
        """Start the draws from `seed`, at least 0."""
        self.seed = checked_seed(self.name, seed)

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score_chosen, on_access=on_access, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[int, ...]:
        """One for each frequency, ordered by release."""
        return (True,) * FREQUENCIES

    def space(self) -> ParamSpace:
        """The learning rate."""
        return SPACE

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The weight of LRU and ln d; the clock, the generator, each slot's frequency, and the histories."""
        columns = np.zeros(HEAD + COLUMNS * num_blocks, np.int64)
        columns[RANDOM] = self.seed
        history = empty_history(num_blocks + 2 * (num_blocks // 2) + 1)
        return np.array([0.5, math.log(DISCOUNT) / num_blocks]), np.concatenate([columns, history])
