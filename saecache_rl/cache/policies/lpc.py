"""Learned Prefix Caching: how likely a conversation goes on, fading with the time since its last access."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_RELEASE, SHARED
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.errors import InputError

#: Probabilities are taken to lie between this and one less this, so that their odds are finite.
LEAST = 1e-6
#: Stands for a key of 0, which a block has until its first release.
ALMOST_ZERO = 1e-300


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Key: seconds of the last access, later by as many turns as the log-odds of going on; if shared, the most."""
    request = cache.request[0]
    probability = min(max(request.probability, LEAST), 1.0 - LEAST)
    later = math.log(probability / (1.0 - probability)) * cache.params[0]
    for i in range(size):
        block = cache.blocks[chain[i]]
        key = block.time + later
        if block.flags & SHARED and block.key != 0.0:
            key = max(key, block.key)
        block.key = key if key != 0.0 else ALMOST_ZERO


def _positive(seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 < seconds < math.inf:
        raise InputError(f"policy lpc: turn_seconds is {seconds!r}; give a positive number of seconds")
    return float(seconds)


class LPC(Policy):
    """LPC (Yang, Li, Li and Lloyd, Learned Prefix Caching for Efficient LLM Inference, NeurIPS 2025, section 3.4).

    The predictor says at the end of a request with which probability p its conversation goes on. After t seconds
    without an access that is

        p(t) = p d / (p d + 1 - p)        d = exp(-t / turn_seconds)

    and the lowest is evicted. In log-odds this is logit(p) - t / turn_seconds, so that the order of two blocks never
    changes while they wait: it is the order of last access + turn_seconds x logit(p), one ordered class.

    What differs from the paper or is open in it:

    - Its predictor is a text embedding of the last four prompts and a small network. Here it is the engine's
      (`predictor=`): in simulation request figures, learned online, on a live engine a trained one.
    - It renews p(t) every 10 s; here it is exact at any time. A scale of 0.01 a second, one over the mean time between
      turns, is its default and here turn_seconds = 100.
    - A block that several conversations have counts with the highest probability of them (max-pooling). It is one that
      another session has matched.
    - Equal keys: deeper first, as everywhere here; its blocks of one conversation all have the same.
    """

    name = "lpc"
    uses_predictor = True

    def __init__(self, turn_seconds: float = 100.0) -> None:
        """Set the mean time between turns.

        Raises:
            InputError: it is not a positive, finite number.
        """
        self.turn_seconds = _positive(turn_seconds)

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(on_release=on_release)

    def encode(self, params: PolicyParams) -> npt.NDArray[np.float64]:
        """The seconds of a turn."""
        return np.array([self.turn_seconds])
