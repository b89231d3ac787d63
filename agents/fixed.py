"""The agent that never learns: its policy's start values for ever. LRU, the optimum and untuned SAECache are such."""

from __future__ import annotations

from saecache_rl.agents.base import Agent, State, check_names
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats


class Fixed(Agent):
    """Serves every window under the start values of `policy`."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self._params = policy.space().start()

    def reset(self, seed: int) -> None:
        """Do nothing: there is no state and no chance."""

    def act(self, stats: WindowStats) -> PolicyParams:
        """Return the start values."""
        return self._params

    def observe(self, stats: WindowStats, reward: float) -> None:
        """Do nothing."""

    def state_dict(self) -> State:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Accept an empty state only."""
        check_names(self.name, state, ())
