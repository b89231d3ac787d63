"""The positional decay of structural blocks: how reuse falls from the start of a chain to its end."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from saecache_rl.agents.base import Module, check_option
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import NUM_OFFSET_BINS, WindowStats
from saecache_rl.errors import InputError

#: Relative offset at the centre of each bin.
_CENTRES = (np.arange(NUM_OFFSET_BINS) + 0.5) / NUM_OFFSET_BINS
_GRID_POINTS = 33


class PositionalDecay(Module):
    """Least squares of the hit rate by relative offset x, relative to the first bin's, against 1 - x^gamma.

    Each bin weighs as its accesses; counts decay by `decay` a window, which is what smooths gamma. Without a hit in the
    first bin, without an access in another, or with fewer than `minimum_accesses` in all, gamma stays.
    """

    state_names = ("_accesses", "_hits")

    def __init__(
        self, decay: float = 0.99, minimum_accesses: float = 100.0, low: float = 0.1, high: float = 8.0
    ) -> None:
        """Set the decay of counts a window, how many accesses a fit needs, and the range that is searched."""
        self.decay = check_option("position", "decay", decay, 0.0, 1.0)
        self.minimum_accesses = check_option("position", "minimum_accesses", minimum_accesses, 0.0, 1e12)
        self.low = check_option("position", "low", low, 0.0, 1e3)
        self.high = check_option("position", "high", high, 0.0, 1e3)
        if self.low >= self.high:
            raise InputError(f"position: low ({self.low:g}) must be below high ({self.high:g})")
        self.reset(0)

    @property
    def owns(self) -> tuple[str, ...]:
        """The exponent."""
        return ("gamma",)

    def reset(self, seed: int) -> None:
        """Forget all counts."""
        self._accesses = np.zeros(NUM_OFFSET_BINS, np.float64)
        self._hits = np.zeros(NUM_OFFSET_BINS, np.float64)

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Add the window's counts and fit gamma anew."""
        self._accesses = self._accesses * self.decay + stats.offset_accesses
        self._hits = self._hits * self.decay + stats.offset_hits
        enough = float(self._accesses.sum()) >= self.minimum_accesses
        if not enough or self._hits[0] <= 0.0 or self._accesses[0] <= 0.0 or self._accesses[1:].max() <= 0.0:
            return {}
        return {"gamma": self._fit()}

    def _fit(self) -> float:
        known = self._accesses > 0.0
        weight = self._accesses[known] / self._accesses.sum()
        rate = self._hits[known] / self._accesses[known]
        relative = rate / rate[0]
        log_centre = np.log(_CENTRES[known])

        def loss(log_gamma: float) -> float:
            model = 1.0 - np.exp(log_centre * np.exp(log_gamma))
            return float(np.sum(weight * (relative - model) ** 2))

        # The loss may have several dips: a grid finds the deepest, the search then refines it.
        grid = np.linspace(np.log(self.low), np.log(self.high), _GRID_POINTS)
        best = int(np.argmin([loss(point) for point in grid]))
        bounds = (grid[max(0, best - 1)], grid[min(_GRID_POINTS - 1, best + 1)])
        found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
        return float(np.clip(np.exp(found.x), self.low, self.high))
