"""LHD: hit density, learned from the ages at which blocks are hit and evicted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.policies.columns import column, is_new
from saecache_rl.cache.policies.draws import checked_seed, draw
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.errors import InputError

#: Ages are told apart up to this, in steps of 2^SHIFT block accesses.
AGES = 512
#: Steps in which as many blocks are accessed as the pool holds, at most.
STEPS = 32
#: By the sum of a block's last two ages: 0 the largest, the last for a sum of 0.
CLASSES = 11
DECAY = 0.9
EXPLORE = 32
EXPLORING = 50

# cache.ints: block accesses so far, log2 of a step, block accesses at the next reconfiguration, how many there were,
# blocks that may still be kept to explore, state of the generator, the interval in N; then columns.
CLOCK, SHIFT, NEXT, CONFIGURED, BUDGET, RANDOM, INTERVAL = 0, 1, 2, 3, 4, 5, 6
HEAD = 7
ACCESSED, LAST_AGE, CLASS, EXPLORER = (
    0,
    1,
    2,
    3,
)  # columns: CLOCK at its last access (0: no block), steps, class, 0 or 1
COLUMNS = 4
# cache.reals: three tables of (CLASSES, AGES)
TABLE = CLASSES * AGES
HITS, EVICTIONS, DENSITY = 0, TABLE, 2 * TABLE


@kernel(INT(CACHE, INT), forceinline=True)
def age_of(cache, slot):  # type: ignore[no-untyped-def]
    """Steps since a slot's last access, at most AGES - 1."""
    return min((cache.ints[CLOCK] - column(cache, HEAD, ACCESSED)[slot]) >> cache.ints[SHIFT], AGES - 1)


@kernel(INT(INT), forceinline=True)
def class_of(ages):  # type: ignore[no-untyped-def]
    """Class of the sum of the last two ages: how often it can be doubled below AGES."""
    if ages == 0:
        return CLASSES - 1
    found = 0
    while ages < AGES:
        ages <<= 1
        found += 1
    return found


@kernel(types.void(CACHE))
def reconfigure(cache):  # type: ignore[no-untyped-def]
    """Fade the counts, and make each class's densities anew: hits to come over time to be held, from each age on."""
    reals = cache.reals
    for c in range(CLASSES):
        hits = events = held = 0.0
        for age in range(AGES - 1, -1, -1):
            at = c * AGES + age
            reals[HITS + at] *= DECAY
            reals[EVICTIONS + at] *= DECAY
            hits += reals[HITS + at]
            events += reals[HITS + at] + reals[EVICTIONS + at]
            held += events
            reals[DENSITY + at] = hits / held if events > 1e-5 else 0.0


@kernel(types.void(CACHE, INT), forceinline=True)
def give_up(cache, slot):  # type: ignore[no-untyped-def]
    """A slot explores no more."""
    explorer = column(cache, HEAD, EXPLORER)
    cache.ints[BUDGET] += explorer[slot]
    explorer[slot] = 0


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """Density of a block's class at its age; one more for an explorer; below all others beyond the ages."""
    accessed, classes = column(cache, HEAD, ACCESSED), column(cache, HEAD, CLASS)
    explorer = column(cache, HEAD, EXPLORER)
    clock, shift = cache.ints[CLOCK], cache.ints[SHIFT]
    for i in range(size):
        slot = slots[i]
        age = (clock - accessed[slot]) >> shift
        if age >= AGES - 1:
            scores[i] = -1.0
        else:
            scores[i] = cache.reals[DENSITY + classes[slot] * AGES + age] + explorer[slot]


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Count the hits at their ages, which then tell the blocks' classes."""
    accessed, last_age = column(cache, HEAD, ACCESSED), column(cache, HEAD, LAST_AGE)
    classes = column(cache, HEAD, CLASS)
    for i in range(hits):
        slot = np.int64(chain[i])
        if accessed[slot] == 0:
            continue
        age = age_of(cache, slot)
        cache.reals[HITS + classes[slot] * AGES + age] += 1.0
        classes[slot] = class_of(age + last_age[slot])
        last_age[slot] = age
        accessed[slot] = cache.ints[CLOCK]
        give_up(cache, slot)


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """All blocks of a request are accessed at once; one request in so many explores."""
    ints = cache.ints
    accessed, last_age = column(cache, HEAD, ACCESSED), column(cache, HEAD, LAST_AGE)
    classes, explorer = column(cache, HEAD, CLASS), column(cache, HEAD, EXPLORER)
    explores = ints[CONFIGURED] < EXPLORING and draw(cache, RANDOM) * EXPLORE < 1.0
    ints[CLOCK] += size
    for i in range(size):
        slot = np.int64(chain[i])
        if is_new(cache.blocks[slot], accessed[slot]):
            last_age[slot] = 0
            classes[slot] = 0
        accessed[slot] = ints[CLOCK]
        give_up(cache, slot)
        if explores and ints[BUDGET] > 0:
            explorer[slot] = 1
            ints[BUDGET] -= 1
        cache.blocks[slot].cls = 0
    cache.pool[0].version += 1  # ages have changed, whatever the time
    if ints[CLOCK] >= ints[NEXT]:
        reconfigure(cache)
        ints[CONFIGURED] += 1
        ints[NEXT] = ints[CLOCK] + ints[INTERVAL] * len(cache.blocks)


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Count the evictions at their ages."""
    accessed, classes = column(cache, HEAD, ACCESSED), column(cache, HEAD, CLASS)
    for i in range(size):
        slot = np.int64(victims[i])
        if accessed[slot] > 0:
            cache.reals[EVICTIONS + classes[slot] * AGES + age_of(cache, slot)] += 1.0
        give_up(cache, slot)
        accessed[slot] = 0


class LHD(Policy):
    """Least hit density (Beckmann, Chen and Cidon, LHD: improving cache hit rate by maximizing hit density, NSDI 2018).

    A block's hit density at its age is the expected number of hits to come over the expected time that it will be
    held, from counts of the ages at which blocks of its class were hit and evicted; the lowest goes. Age is counted in
    block accesses since the last one, coarsened; a class is the logarithm of the sum of a block's last two ages, for
    new blocks the largest. Every `interval` x N block accesses the counts fade by 0.9 and the densities are made anew;
    before the first time they fall as 1 / age and rise with the class. To find out about ages at which nothing is kept,
    the blocks of one request in 32 are kept for a while, at most 1 % of the pool and only until the fiftieth time.

    What differs from the authors' code, which libCacheSim has: all leaves are looked at, up to 4,096, not a sample and
    the latest admissions; the step of age is N / 32 accesses from the start, where that code finds N out by and by and
    then takes N / 200; 512 steps, not 20,000; densities anew every N accesses, not every 2^20, which is more than some
    traces have; one application, so 11 classes, as many as 512 ages need; the blocks of a request explore together.
    With an interval of 2^20 / N, hit ratios on long runs of single blocks are libCacheSim's (`docs/peers.md`).
    """

    name = "lhd"

    def __init__(self, interval: int = 1, seed: int = 0) -> None:
        """Make the densities anew every `interval` x N block accesses; start the draws of what explores from `seed`.

        Raises:
            InputError: an interval below 1 or above 2^20, or a seed below 0.
        """
        if not 1 <= interval <= 2**20:
            raise InputError(f"policy lhd: interval is {interval}; 1 to 2^20 pools are possible")
        self.interval = interval
        self.seed = checked_seed(self.name, seed)

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_access=on_access, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[int, ...]:
        """One, in no order that lasts."""
        return (False,)

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Counts and densities; the clock, the generator, and what is known of each slot."""
        ints = np.zeros(HEAD + COLUMNS * num_blocks, np.int64)
        step = 0
        while STEPS << step < num_blocks:
            step += 1
        ints[SHIFT], ints[NEXT], ints[BUDGET] = step, self.interval * num_blocks, num_blocks // 100
        ints[RANDOM], ints[INTERVAL] = self.seed, self.interval
        reals = np.zeros(3 * TABLE, np.float64)
        age, rank = np.arange(AGES), np.arange(CLASSES)[:, None]
        reals[DENSITY:] = ((rank + 1) / (age + 1)).ravel()
        return reals, ints
