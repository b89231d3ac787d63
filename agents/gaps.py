"""The log-normal law of the gaps between the turns of a session, for chat and for agentic sessions."""

from __future__ import annotations

import math

import numpy as np

from saecache_rl.agents.base import Module, check_option
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import NUM_GAP_KINDS, WindowStats

#: In the order of the statistics' gap columns.
GAP_KINDS = ("chat", "agentic")
#: ln-gaps whose variance is below this, relative to their squared mean, are equal up to rounding.
_EQUAL = 1e-9


class LogNormalGaps(Module):
    """Maximum likelihood in closed form, on the logarithms of completed gaps, blended by an exponential moving average.

    The fit of a batch of n gaps is m = mean(ln gap), v = n / (n - 1) var(ln gap): the variance is corrected for the
    batch's own mean, without which small batches would pull sigma down. It is blended by its share of what counts:

        weight' = weight (1 - rate)^n + n,   a = n / weight'
        mu' = (1 - a) mu + a m,   sigma'^2 = (1 - a) sigma^2 + a v

    In the long run the last 1 / rate gaps count, however they fall into windows. The start values count as `minimum`
    gaps, so that the first few hundred move them quickly. Each kind of session waits until `minimum` gaps are there. A
    batch of equal gaps has no variance to fit and is dropped.
    """

    state_names = ("_weight", "_count", "_log_sum", "_log_square_sum")
    hyperparameters = ("rate_factor",)

    def __init__(self, rate: float = 0.0005, minimum: int = 20, sigma_floor: float = 0.05) -> None:
        """Set the average's rate a gap, the smallest batch, and the lowest sigma."""
        self.rate = check_option("gaps", "rate", rate, 0.0, 1.0)
        self.minimum = check_option("gaps", "minimum", minimum, 1.0, 1e9)
        self.sigma_floor = check_option("gaps", "sigma_floor", sigma_floor, 0.0, 5.0)
        self.reset(0)

    @property
    def owns(self) -> tuple[str, ...]:
        """Mean and deviation of ln seconds, for chat and agentic sessions."""
        return tuple(f"{what}.{kind}" for kind in GAP_KINDS for what in ("mu", "sigma"))

    def reset(self, seed: int) -> None:
        """Forget the gaps that wait, and how many have counted."""
        self.rate_factor = 1.0
        self._weight = np.full(NUM_GAP_KINDS, self.minimum, np.float64)
        self._count = np.zeros(NUM_GAP_KINDS, np.int64)
        self._log_sum = np.zeros(NUM_GAP_KINDS, np.float64)
        self._log_square_sum = np.zeros(NUM_GAP_KINDS, np.float64)

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Add the window's gaps and, for each kind that has enough, blend their fit in."""
        values: dict[str, float] = {}
        for i, kind in enumerate(GAP_KINDS):
            if not (math.isfinite(stats.gap_log_sum[i]) and math.isfinite(stats.gap_log_square_sum[i])):
                continue
            self._count[i] += stats.gap_count[i]
            self._log_sum[i] += stats.gap_log_sum[i]
            self._log_square_sum[i] += stats.gap_log_square_sum[i]
            count = int(self._count[i])
            if count < self.minimum:
                continue
            mean = float(self._log_sum[i]) / count
            mean_square = float(self._log_square_sum[i]) / count
            self._count[i], self._log_sum[i], self._log_square_sum[i] = 0, 0.0, 0.0
            variance = mean_square - mean * mean
            if variance <= _EQUAL * max(1.0, mean_square):
                continue
            variance *= count / (count - 1)
            rate = min(1.0, self.rate * self.rate_factor)
            self._weight[i] = self._weight[i] * (1.0 - rate) ** count + count
            share = count / float(self._weight[i])
            mu, sigma = params[f"mu.{kind}"], params[f"sigma.{kind}"]
            values[f"mu.{kind}"] = (1.0 - share) * mu + share * mean
            spread = (1.0 - share) * sigma * sigma + share * variance
            values[f"sigma.{kind}"] = max(self.sigma_floor, math.sqrt(spread))
        return values
