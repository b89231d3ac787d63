"""The bandit over hyperparameters: which averaging rates and which temperature serve this traffic best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from saecache_rl.agents.base import Module, check_option
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError


class Bandit(Module):
    """UCB1 over a small grid of hyperparameters, rewarded by the windows' token hit ratio.

    Each arm is one combination of the grid's values; an arm is held for `hold` windows, since a parameter needs some to
    follow, and earns the token hit ratio of all of them together. The first arm is the first value of every list; the
    others follow in an order drawn from the seed until each has been tried. From then on the arm with the largest

        mean reward + exploration * sqrt(2 ln(n) / n_arm)

    is taken: UCB1 (Auer, Cesa-Bianchi and Fischer, Machine Learning 47, 2002) at exploration = 1. Counts and rewards
    decay by `discount` at each choice, because traffic drifts (Garivier and Moulines, ALT 2011); ties go to the lower
    arm.
    """

    #: What it is called in messages.
    slot = "meta"
    #: Values of the grid lie above this.
    above = 0.0
    state_names = ("_order", "_counts", "_rewards", "_tried", "_arm", "_windows", "_hit_tokens", "_prompt_tokens")

    def __init__(
        self,
        grid: Mapping[str, Sequence[float]],
        hold: int = 5,
        exploration: float = 0.05,
        discount: float = 0.98,
    ) -> None:
        """Set the values by name of hyperparameter, and the bandit's own options.

        Raises:
            InputError: an empty list, or a value that is not a positive number.
        """
        self.names = tuple(grid)
        for name in self.names:
            if isinstance(grid[name], str) or not len(grid[name]):
                raise InputError(f"{self.slot}: grid.{name} is {grid[name]!r}; give a list of at least one number")
            for value in grid[name]:
                check_option(self.slot, f"grid.{name}", value, self.above, 1e6)
        self.arms = tuple(itertools.product(*(tuple(float(v) for v in grid[name]) for name in self.names)))
        self.hold = int(check_option(self.slot, "hold", hold, 0.0, 1e6))
        self.exploration = check_option(self.slot, "exploration", exploration, 0.0, 1e6)
        self.discount = check_option(self.slot, "discount", discount, 0.0, 1.0)
        self.reset(0)

    @property
    def owns(self) -> tuple[str, ...]:
        """No parameter of the policy."""
        return ()

    def reset(self, seed: int) -> None:
        """Forget every reward and draw the order of first trials."""
        others = np.random.default_rng(seed).permutation(np.arange(1, len(self.arms)))
        self._order = np.concatenate([np.zeros(1, np.int64), others.astype(np.int64)])
        self._counts = np.zeros(len(self.arms), np.float64)
        self._rewards = np.zeros(len(self.arms), np.float64)
        self._tried, self._arm, self._windows = 1, 0, 0
        self._hit_tokens, self._prompt_tokens = 0, 0

    def suggest(self) -> dict[str, float]:
        """Return the values of the arm that is held."""
        return dict(zip(self.names, self.arms[self._arm], strict=True))

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Credit the arm that is held, and choose the next when its time is over."""
        self._windows += 1
        self._hit_tokens += stats.hit_tokens
        self._prompt_tokens += stats.prompt_tokens
        if self._windows < self.hold:
            return {}
        self._counts *= self.discount
        self._rewards *= self.discount
        self._counts[self._arm] += 1.0
        self._rewards[self._arm] += self._hit_tokens / self._prompt_tokens if self._prompt_tokens else 0.0
        self._windows, self._hit_tokens, self._prompt_tokens = 0, 0, 0
        self._arm = self._next()
        return {}

    def _next(self) -> int:
        if self._tried < len(self.arms):
            self._tried += 1
            return int(self._order[self._tried - 1])
        counts = np.maximum(self._counts, 1e-12)
        width = np.sqrt(2.0 * max(0.0, math.log(max(1.0, float(counts.sum())))) / counts)
        return int(np.argmax(self._rewards / counts + self.exploration * width))


class ParameterBandit(Bandit):
    """The same over parameters of the policy, which it owns: for those that nothing but trial shows a value of."""

    slot = "parameter bandit"
    above = -1e300

    @property
    def owns(self) -> tuple[str, ...]:
        """The names of its grid."""
        return self.names

    def suggest(self) -> dict[str, float]:
        """No hyperparameters."""
        return {}

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Credit the arm that is held; return the values of the next."""
        super().update(stats, params, reward)
        return dict(zip(self.names, self.arms[self._arm], strict=True))
