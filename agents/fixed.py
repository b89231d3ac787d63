"""The agent that never learns: one set of values for ever. LRU, the optimum and untuned SAECache are such."""

from __future__ import annotations

from collections.abc import Mapping

from saecache_rl.agents.base import Agent, State, check_names
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError


class Fixed(Agent):
    """Serves every window under the start values of `policy`, or those that are given."""

    def __init__(self, name: str, policy: Policy, params: Mapping[str, float] | None = None) -> None:
        """Name the values that differ from the policy's own.

        Raises:
            InputError: a parameter that the policy does not have, or a value outside its bounds.
        """
        self.name = name
        self.policy = policy
        self._params = policy.space().start()
        for key, value in (params or {}).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"agent {name}: parameter {key} is {value!r}; give a number")
            self._params = self._params.replace({key: value})
            if self._params[key] != value:
                param = policy.space().params[policy.space().index[key]]
                raise InputError(f"agent {name}: parameter {key} is {value}, outside [{param.low}, {param.high}]")

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
