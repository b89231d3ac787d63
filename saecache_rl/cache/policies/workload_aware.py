"""The workload-aware policy of KVCache Cache in the Wild: reuse probability by category of request."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.ghosts import find_ghost, fingerprint_of
from saecache_rl.cache.layout import ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

#: Turns with categories of their own; the last stands for all later ones.
TURNS = 16
#: Class 0 is that of blocks which no request has released yet; then chat and agentic, by turn.
NUM_CLASSES = 1 + 2 * TURNS
#: What a category has seen fades by this at each of its requests.
DECAY = 0.999
#: What a category starts with: blocks released, blocks used again, and seconds until then.
START_RELEASED, START_REUSED, START_SECONDS = 2.0, 1.0, 60.0
#: Weight of a request's victims in the average age at eviction.
RATE = 0.05
SHORTEST = 1e-3

# cache.reals: three numbers a class (and one class that a live engine may add), then the average age at eviction, 0
# before the first, and the sum of ages and the number of victims since the last request.
RELEASED, REUSED, SECONDS = 0, 1, 2
LIFE = 3 * (NUM_CLASSES + 1)
AGES, VICTIMS = LIFE + 1, LIFE + 2


@kernel(inline="always")
def _used_again(cache, c, seconds):  # type: ignore[no-untyped-def]
    """A block of class `c` is used again, so many seconds after its last access."""
    if 0 < c < NUM_CLASSES:
        cache.reals[3 * c + REUSED] += 1.0
        cache.reals[3 * c + SECONDS] += max(seconds, 0.0)


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Learn from the victims of the request before, and from every block that is used again, hit or evicted since."""
    now = cache.pool[0].now
    reals = cache.reals
    if reals[VICTIMS] > 0.0:
        mean = reals[AGES] / reals[VICTIMS]
        reals[LIFE] = mean if reals[LIFE] == 0.0 else reals[LIFE] + RATE * (mean - reals[LIFE])
        reals[AGES] = reals[VICTIMS] = 0.0
    for i in range(hits):
        block = cache.blocks[chain[i]]
        _used_again(cache, block.cls, now - block.key)
    for i in range(len(missed)):
        ring = find_ghost(cache, fingerprint_of(cache, missed[i]))
        if ring >= 0:
            _used_again(cache, cache.ghosts[ring].cls, now - cache.ghosts[ring].time)
    cache.pool[0].version += 1


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Category: chat or agentic, and the turn. Ordered by the seconds of the last access."""
    request = cache.request[0]
    c = 1 + min(max(request.turn, 0), TURNS - 1) + (TURNS if request.agentic != 0 else 0)
    reals = cache.reals
    for i in range(3):
        reals[3 * c + i] *= DECAY
    reals[3 * c + RELEASED] += size
    for i in range(size):
        block = cache.blocks[chain[i]]
        block.cls = c
        block.key = block.time


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Sum up ages at eviction; a request may take its blocks at once or one by one."""
    now = cache.pool[0].now
    for i in range(size):
        cache.reals[AGES] += max(now - cache.blocks[victims[i]].time, SHORTEST)
        cache.reals[VICTIMS] += 1.0


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """ln of the probability of a use between now and the end of a block's expected life."""
    reals = cache.reals
    now = cache.pool[0].now
    for i in range(size):
        block = cache.blocks[slots[i]]
        at = 3 * block.cls
        reused = reals[at + REUSED] + START_REUSED
        rate = reused / (reals[at + SECONDS] + START_SECONDS)
        share = min(reused / (reals[at + RELEASED] + START_RELEASED), 1.0)
        within = 1.0 if reals[LIFE] == 0.0 else -math.expm1(-rate * reals[LIFE])
        scores[i] = math.log(share) + math.log(within) - rate * (now - block.time)


class WorkloadAware(Policy):
    """KVCache Cache in the Wild (Wang et al., USENIX ATC 2025, arXiv 2506.02634, section 4).

    A block's priority is the pair (probability that it is used in the time that it is expected to live on, -offset),
    compared in this order; the lowest goes. The probability is that of its category w of requests, t after its last
    access,

        ReuseProb_w(t, life) = F_w(t + life) - F_w(t)        F_w(t) = p_w (1 - exp(-rate_w t))

    an exponential distribution of the time to the next use. It falls with t, so that each category is an LRU list and
    only the lists' heads are compared.

    What the paper leaves to its setting, or what was not to be seen:

    - *Category* is the request's type, tagged by the gateway, and the turn. An engine sees no tag: here chat or agentic
      (its session has had tools), and the turn, from lineage, up to 15.
    - *Fit*: on sampled traffic in the background there, online here: p_w = blocks used again / blocks released,
      1 / rate_w = mean seconds until then, over the blocks that are resident and as many that were evicted; fading
      by 0.999 a request of the category. That reuse *probability* differs by category as reuse time does is the paper's
      finding; p_w is how it is put here.
    - *life*: the average age at eviction of late. Before the first eviction it is without end.
    - A block's category is that of the last request that released it.
    """

    name = "workload_aware"
    learns = True
    ghosts = 1.0

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_access=on_access, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[bool, ...]:
        """One a category, all ordered by the last access."""
        return (True,) * NUM_CLASSES

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """What each category has seen, and the average age at eviction."""
        return np.zeros(VICTIMS + 1, np.float64), np.zeros(0, np.int64)
