"""The module that keeps its slot's parameters, or the other modules' hyperparameters, at their start values."""

from __future__ import annotations

from saecache_rl.agents.base import Module
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import WindowStats


class Frozen(Module):
    """Owns nothing: a parameter that no module owns stays at its start.

    Any slot takes it, to show what its module adds.
    """

    @property
    def owns(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def reset(self, seed: int) -> None:
        """Do nothing."""

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Change nothing."""
        return {}
