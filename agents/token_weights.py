"""The weights of token types, from how often blocks of each type are used again, and missed after eviction."""

from __future__ import annotations

import numpy as np

from saecache_rl.agents.base import Module, check_option
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import WindowStats
from saecache_rl.vocabulary import NUM_TOKEN_TYPES, TOKEN_TYPE_NAMES


class TokenWeights(Module):
    """An exponential moving average of 1 + 5 r_miss + 2 r_reuse for each type (SAECache, arXiv 2605.18825).

    r_miss is the share of the type's evictions that were missed later (misses on ghosts / evictions), r_reuse that of
    its accesses which hit; all counts decay by `decay` a window, and both shares stay within [0, 1] (a miss may follow
    an eviction that has decayed away). A type that was neither accessed nor evicted keeps its weight.
    """

    state_names = ("_accesses", "_hits", "_evictions", "_ghost_misses")
    hyperparameters = ("rate_factor",)

    def __init__(self, rate: float = 0.1, decay: float = 0.99, miss_gain: float = 5.0, reuse_gain: float = 2.0) -> None:
        """Set the average's rate a window (eta), the decay of counts a window, and the two gains."""
        self.rate = check_option("token_weights", "rate", rate, 0.0, 1.0)
        self.decay = check_option("token_weights", "decay", decay, 0.0, 1.0)
        self.miss_gain = check_option("token_weights", "miss_gain", miss_gain, 0.0, 1e6)
        self.reuse_gain = check_option("token_weights", "reuse_gain", reuse_gain, 0.0, 1e6)
        self.reset(0)

    @property
    def owns(self) -> tuple[str, ...]:
        """The seven weights."""
        return tuple(f"weight.{name}" for name in TOKEN_TYPE_NAMES)

    def reset(self, seed: int) -> None:
        """Forget all counts."""
        self.rate_factor = 1.0
        self._accesses, self._hits, self._evictions, self._ghost_misses = np.zeros((4, NUM_TOKEN_TYPES), np.float64)

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Add the window's counts and move the weight of each type that has any."""
        self._accesses = self._accesses * self.decay + stats.type_accesses
        self._hits = self._hits * self.decay + stats.type_hits
        self._evictions = self._evictions * self.decay + stats.type_evictions
        self._ghost_misses = self._ghost_misses * self.decay + stats.type_ghost_misses
        rate = min(1.0, self.rate * self.rate_factor)
        values: dict[str, float] = {}
        for i, name in enumerate(self.owns):
            if self._accesses[i] <= 0.0 and self._evictions[i] <= 0.0:
                continue
            target = (
                1.0
                + self.miss_gain * _share(self._ghost_misses[i], self._evictions[i])
                + self.reuse_gain * _share(self._hits[i], self._accesses[i])
            )
            values[name] = (1.0 - rate) * params[name] + rate * target
        return values


def _share(part: float, whole: float) -> float:
    return float(min(1.0, part / whole)) if whole > 0.0 else 0.0
