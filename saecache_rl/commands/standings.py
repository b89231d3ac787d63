"""How an agent stands against LRU and the optimum over capacities and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with a bootstrapped interval where there are at least two."""

    mean: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(values: Sequence[float]) -> Estimate | None:
        """The estimate from one value a seed; None without values."""
        if not values:
            return None
        mean = float(np.mean(values))
        if len(values) < 2:
            return Estimate(mean)
        if min(values) == max(values):
            return Estimate(mean, mean, mean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two seeds make a coarse interval, which the table shows
            result = scipy.stats.bootstrap(
                (np.asarray(values, np.float64),),
                np.mean,
                confidence_level=CONFIDENCE,
                method="percentile",
                rng=np.random.default_rng(0),
            )
        return Estimate(mean, float(result.confidence_interval.low), float(result.confidence_interval.high))

    def text(self, scale: float = 1.0, digits: int = 3) -> str:
        """``0.412 [0.398, 0.431]``."""
        mean = f"{scale * self.mean:.{digits}f}"
        if self.low is None or self.high is None:
            return mean
        return f"{mean} [{scale * self.low:.{digits}f}, {scale * self.high:.{digits}f}]"


@dataclass(frozen=True)
class Standing:
    """How an agent stands over all capacities.

    Attributes:
        agent: its name.
        oracle: it sees ahead.
        gap_closed: sum over capacities of (policy - LRU), over that of (optimum - LRU); None where the optimum is LRU.
        mean_gap_closed: mean over capacities of the ratios.
        worst_points: the smallest of policy - LRU over capacities (and seeds), in points of token hit ratio.
        outcomes: at how many capacities (and seeds) it has more, as many, fewer hit tokens than LRU.
        hit_ratio: at each capacity.
    """

    agent: str
    oracle: bool
    gap_closed: Estimate | None
    mean_gap_closed: Estimate | None
    worst_points: float
    outcomes: tuple[int, int, int]
    hit_ratio: tuple[Estimate | None, ...]
