"""What an agent is, and what a module of one is: statistics of a window flow in, parameters of the policy flow out.

The loop that drives an agent:

    params = agent.act(stats)             # statistics of the window before; WindowStats.empty() at first
    stats = engine.serve(window, params)
    agent.observe(stats, reward)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError

#: A state: nested dictionaries with text keys of arrays, int, float, str, bool, None and lists of these.
State = dict[str, Any]


class Agent(ABC):
    """Chooses the parameters of `policy` for each window of requests.

    Attributes:
        name: its name in results.
        policy: the policy whose parameters it moves.
    """

    name: str
    policy: Policy

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Forget everything; all chance from here on comes from `seed`."""

    @abstractmethod
    def act(self, stats: WindowStats) -> PolicyParams:
        """Return the parameters of the next window, given the statistics of the one before."""

    @abstractmethod
    def observe(self, stats: WindowStats, reward: float) -> None:
        """Learn from the window that was served under the parameters of the last `act`."""

    @abstractmethod
    def state_dict(self) -> State:
        """Return a snapshot from which `load_state_dict` continues to the bit."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Take over a snapshot of an agent of the same configuration.

        Raises:
            InputError: the snapshot is of another configuration.
        """


class Module(ABC):
    """A part of an agent, which owns some of the policy's parameters and updates them once a window.

    A subclass names the attributes that make up its state in `state_names`; saving, loading and checking follow from
    that.
    """

    #: Attributes (numbers, or arrays of a constant shape) that change during a run.
    state_names: ClassVar[tuple[str, ...]] = ()
    #: Attributes that another module, such as the meta bandit, may set; part of the state.
    hyperparameters: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def owns(self) -> tuple[str, ...]:
        """Names of the parameters that it alone sets."""

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Forget everything, hyperparameters included."""

    @abstractmethod
    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Learn from a window.

        Args:
            stats: its statistics.
            params: the parameters that it was served under.
            reward: what it earned.

        Returns:
            New values, finite, of parameters that it owns; those left out stay. The caller clips them to their bounds.
        """

    def suggest(self) -> dict[str, float]:
        """Hyperparameters, by name, that it wants every other module which has them to use from now on."""
        return {}

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set one of `hyperparameters`."""
        if name not in self.hyperparameters:
            raise InputError(f"{type(self).__name__} has no hyperparameter '{name}'")
        setattr(self, name, float(value))

    def state_dict(self) -> State:
        """Return a snapshot."""
        state: State = {}
        for name in self.state_names + self.hyperparameters:
            value = getattr(self, name)
            state[name] = value.copy() if isinstance(value, np.ndarray) else value
        return state

    def load_state_dict(self, state: State) -> None:
        """Take over a snapshot.

        Raises:
            InputError: names or shapes are not those of this module.
        """
        names = self.state_names + self.hyperparameters
        check_names(type(self).__name__, state, names)
        loaded: State = {}
        for name in names:
            now, value = getattr(self, name), state[name]
            if isinstance(now, np.ndarray):
                array = np.array(value, now.dtype)
                if array.shape != now.shape:
                    raise InputError(
                        f"the saved state of {type(self).__name__} has {name} of shape {array.shape}, expected "
                        f"{now.shape}; load it into an agent of the same configuration"
                    )
                loaded[name] = array
            else:
                loaded[name] = type(now)(value)
        for name, value in loaded.items():
            setattr(self, name, value)


def check_names(owner: str, state: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse a saved state whose keys are not `names`.

    Raises:
        InputError: naming `owner` and the first key that is missing or unknown.
    """
    for name in sorted(set(names) ^ set(state)):
        problem = "lacks" if name in names else "has an unknown"
        raise InputError(
            f"the saved state of {owner} {problem} '{name}'; load it into an agent of the same configuration"
        )


def check_option(owner: str, name: str, value: object, low: float, high: float) -> float:
    """Return an option as a float in (low, high].

    Raises:
        InputError: it is none, or not finite.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low < value <= high
    ):
        raise InputError(f"{owner}: {name} is {value!r}; give a number above {low:g} and at most {high:g}")
    return float(value)
