"""Least frequently used, with dynamic ageing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_EVICT, ON_RELEASE
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

AGE = 0  # cache.reals: key of the latest victim, L in the paper


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """K = C * F + L with cost C = 1: accesses since the block was inserted, on top of the cache's age."""
    for i in range(size):
        block = cache.blocks[chain[i]]
        block.key = block.count + cache.reals[AGE]


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """The cache's age is the key of what it evicted last."""
    cache.reals[AGE] = max(cache.reals[AGE], cache.blocks[victims[size - 1]].key)


class LFU(Policy):
    """LFU with dynamic ageing (Arlitt et al., Evaluating content management techniques for Web proxy caches, 2000).

    A block's key is its number of accesses plus the key of the last victim at its latest release, so that what was
    popular long ago goes in the end.
    """

    name = "lfu"

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(on_release=on_release, on_evict=on_evict)

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """One number: the cache's age."""
        return np.zeros(1, np.float64), np.zeros(0, np.int64)
