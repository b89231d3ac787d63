"""First in, first out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_EVICT, ON_RELEASE
from saecache_rl.cache.policies.columns import column, is_new
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

ENTERED = 0  # column: number of the release by which the block came in


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """A new block gets its place in the queue; every other keeps it."""
    entered = column(cache, 0, ENTERED)
    for i in range(size):
        block = cache.blocks[chain[i]]
        if is_new(block, entered[chain[i]]):
            entered[chain[i]] = cache.pool[0].release
        block.key = entered[chain[i]]


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """A slot without a block has no place in the queue."""
    entered = column(cache, 0, ENTERED)
    for i in range(size):
        entered[victims[i]] = 0


class FIFO(Policy):
    """Evicts the block that came in the longest ago, whatever was used since; of one request the deepest first.

    What prefix closure changes: a block stays while one behind it does, so a parent may outlive its turn; it goes
    as soon as its last child has gone.
    """

    name = "fifo"

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(on_release=on_release, on_evict=on_evict)

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """One column."""
        return np.zeros(0, np.float64), np.zeros(num_blocks, np.int64)
