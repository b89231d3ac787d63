"""Marconi's FLOP-aware eviction, for a model of attention layers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, SCORE, SLOTS
from saecache_rl.cache.params import Param, ParamSpace
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

# cache.reals: the least and the spread of 1 / age and of offsets among the candidates; cache.ints: the access since
# which they hold.
LEAST_RECENCY, RECENCY_SPREAD, LEAST_OFFSET, OFFSET_SPREAD = 0, 1, 2, 3


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """All are scored anew for each request, also where the clock stands still."""
    cache.pool[0].version += 1


@kernel(types.void(CACHE, SLOTS, INT))
def _measure(cache, slots, size):  # type: ignore[no-untyped-def]
    """Take the range of recency and of offset over the candidates."""
    now = cache.pool[0].access
    first = cache.blocks[slots[0]]
    oldest = newest = first.access
    least = most = first.offset
    for i in range(1, size):
        block = cache.blocks[slots[i]]
        oldest, newest = min(oldest, block.access), max(newest, block.access)
        least, most = min(least, block.offset), max(most, block.offset)
    low, high = 1.0 / max(now - oldest, 1), 1.0 / max(now - newest, 1)
    cache.reals[LEAST_RECENCY] = low
    cache.reals[RECENCY_SPREAD] = high - low
    cache.reals[LEAST_OFFSET] = least
    cache.reals[OFFSET_SPREAD] = most - least


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """Recency + alpha x FLOP efficiency, each from 0 to 1 over the candidates that the request found."""
    now = cache.pool[0].access
    if cache.ints[0] != now:
        cache.ints[0] = now
        _measure(cache, slots, size)
    alpha = cache.params[0]
    low, spread = cache.reals[LEAST_RECENCY], cache.reals[RECENCY_SPREAD]
    least, depths = cache.reals[LEAST_OFFSET], cache.reals[OFFSET_SPREAD]
    for i in range(size):
        block = cache.blocks[slots[i]]
        recency = (1.0 / max(now - block.access, 1) - low) / spread if spread > 0.0 else 1.0
        efficiency = (block.offset - least) / depths if depths > 0.0 else 1.0
        scores[i] = recency + alpha * efficiency


SPACE = ParamSpace((Param("alpha", 0.0, 0.0, 2.0, "linear", "weight of FLOP efficiency against recency"),))


class Marconi(Policy):
    """S = recency + alpha x FLOP efficiency (Pan et al., Marconi, MLSys 2025, arXiv 2411.19379, equation 2).

    FLOP efficiency is the computation that a cached prefix saves over the bytes that it takes. An attention layer of
    width D with its MLP costs 24 L D^2 + 4 L^2 D operations for L tokens, whose keys and values take 4 L D bytes (its
    table 1): 6 D + L for an entry of L tokens, and 6 D + 2 L - b for the last block of b of them. Scaled from 0 to 1
    over the candidates, as the paper does, either is the place in the chain; D and the layers cancel. Recency is
    1 / age, scaled likewise, as in its published code; ages are counted in requests. With alpha = 0 this is LRU.

    What does not carry over: **admission**. The paper admits at most two states of recurrent layers a sequence; keys
    and values are cached for every block anyway, so that nothing is left to admit. Nodes with one child are candidates
    in the paper, since dropping one frees its recurrent state; with attention alone it would free nothing, so leaves
    alone are. It expects little here: served with a pure Transformer, its systems are at par (its figure 12a).

    Ranges are taken over the candidates that a request finds, and hold for its blocks that become candidates meanwhile.
    alpha starts at 0, as in the paper, which then replays a window of requests over a grid; the agent `marconi` tries
    the grid on live traffic instead (`saecache_rl.agents.ParameterBandit`).
    """

    name = "marconi"

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_access=on_access)

    def classes(self) -> tuple[bool, ...]:
        """One without order."""
        return (False,)

    def space(self) -> ParamSpace:
        """alpha."""
        return SPACE

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """The ranges, and since when they hold."""
        return np.zeros(4, np.float64), np.full(1, -1, np.int64)
