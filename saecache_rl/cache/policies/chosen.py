"""How a stepwise policy says which candidate it has chosen: its slot stands in the first word of `cache.ints`."""

from __future__ import annotations

import numpy as np

from saecache_rl.cache.layout import CACHE, INT, SCORE
from saecache_rl.compiled import kernel

CHOSEN = 0


@kernel(INT(CACHE, INT), forceinline=True)
def head_of(cache, c):  # type: ignore[no-untyped-def]
    """The slot that is first in an ordered class, -1 if the class is empty."""
    heap = cache.heaps[c]
    return np.int64(cache.arena[heap.start]) if heap.size > 0 else np.int64(-1)


@kernel(SCORE)
def score_chosen(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """Below all others the chosen one."""
    for i in range(size):
        scores[i] = 0.0 if slots[i] == cache.ints[CHOSEN] else 1.0
