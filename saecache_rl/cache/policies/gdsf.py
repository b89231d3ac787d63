"""GreedyDual-Size-Frequency, the cost of a block being the work that its prefill takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_EVICT, ON_RELEASE
from saecache_rl.cache.params import Param, ParamSpace
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

AGE = 0  # cache.reals: highest key evicted so far, L in the paper
CONTEXT = 0  # cache.params


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """K = F * C / S + L with S = 1 and C = 1 + (tokens before the block's middle) / context."""
    step = cache.pool[0].block_size / cache.params[CONTEXT]
    for i in range(size):
        block = cache.blocks[chain[i]]
        block.key = block.count * (1.0 + (block.offset + 0.5) * step) + cache.reals[AGE]


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """The cache's age is the highest key that it has evicted."""
    for i in range(size):
        block = cache.blocks[victims[i]]
        if block.cls == 0:  # live, a hint puts blocks into a class of its own, with a key of its own
            cache.reals[AGE] = max(cache.reals[AGE], block.key)


class GDSF(Policy):
    """GreedyDual-Size-Frequency (Cherkasova, Improving WWW proxies performance with GDSF caching policy, HP Labs 1998).

    A block's key at its latest release is K = F * C / S + L: accesses since it was inserted, cost of a miss, size, and
    the highest key evicted so far, which ages what was popular long ago. Blocks are of one size, S = 1; with C = 1 as
    well this is `lfu`. Here C is the prefill work that a miss of this block alone costs, its prefix being resident, as
    it always is under prefix closure: 2 P operations a token for P weights and 4 l d a token of context for attention
    (l layers of width d), so C = 1 + (tokens before its middle) / context with context = P / (2 l d) tokens. Some
    30,000 for a model of 8 billion weights, 32 layers and width 4,096. Deep blocks so are dearer, not likelier: this
    saves work rather than tokens.
    """

    name = "gdsf"

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(on_release=on_release, on_evict=on_evict)

    def space(self) -> ParamSpace:
        """The context at which attention costs as much as all else."""
        return SPACE

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The cache's age."""
        return np.zeros(1, np.float64), np.zeros(0, np.int64)


SPACE = ParamSpace((Param("cost.context", 3e4, 1e3, 1e6, "log", "tokens of context at which a token costs twice"),))
