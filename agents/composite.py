"""The agent that joins modules, each of which owns some of the policy's parameters."""

from __future__ import annotations

import numpy as np

from saecache_rl.agents.base import Agent, Module, State, check_names
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError, nearest


class Composite(Agent):
    """Updates every module once a window, each from the parameters that the window was served under.

    Parameters that no module owns stay at their start values. What a module suggests for hyperparameters reaches the
    others after all have been updated.
    """

    def __init__(self, name: str, policy: Policy, **modules: Module) -> None:
        """Join `modules`, by slot.

        Raises:
            InputError: two modules own one parameter, or one owns a parameter that the policy does not have.
        """
        self.name = name
        self.policy = policy
        self.modules = modules
        self._space = policy.space()
        owners: dict[str, str] = {}
        for slot, module in modules.items():
            if not isinstance(module, Module):
                raise InputError(f"agent {name}: '{slot}' is a {type(module).__name__}, expected a module of an agent")
            for parameter in module.owns:
                if parameter not in self._space.index:
                    raise InputError(
                        f"agent {name}: module '{slot}' owns '{parameter}', which policy '{policy.name}' does not have"
                        f"{nearest(parameter, self._space.names)}; remove the module or freeze it"
                    )
                if parameter in owners:
                    raise InputError(
                        f"agent {name}: modules '{owners[parameter]}' and '{slot}' both own '{parameter}'; freeze one"
                    )
                owners[parameter] = slot
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Start anew; every module gets a seed of its own, drawn from `seed` and its place."""
        self._params = self._space.start()
        for place, module in enumerate(self.modules.values()):
            module.reset(int(np.random.SeedSequence([seed, place]).generate_state(1)[0]))
        self._pass_on_suggestions()

    def act(self, stats: WindowStats) -> PolicyParams:
        """Return the current parameters."""
        return self._params

    def observe(self, stats: WindowStats, reward: float) -> None:
        """Update every module. A window without requests teaches nothing."""
        if stats.requests == 0:
            return
        changes: dict[str, float] = {}
        for slot, module in self.modules.items():
            update = module.update(stats, self._params, reward)
            for parameter in update:
                if parameter not in module.owns:
                    raise InputError(f"agent {self.name}: module '{slot}' set '{parameter}', which it does not own")
            changes |= update
        self._params = self._params.replace(changes)
        self._pass_on_suggestions()

    def _pass_on_suggestions(self) -> None:
        for adviser in self.modules.values():
            for name, value in adviser.suggest().items():
                for module in self.modules.values():
                    if module is not adviser and name in module.hyperparameters:
                        module.set_hyperparameter(name, value)

    def state_dict(self) -> State:
        """Return the parameters, by name, and every module's state, by slot."""
        return {
            "params": self._params.as_dict(),
            "modules": {slot: module.state_dict() for slot, module in self.modules.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Take over a snapshot of an agent with the same policy and modules."""
        check_names(self.name, state, ("params", "modules"))
        check_names(f"{self.name}: parameters", state["params"], self._space.names)
        check_names(f"{self.name}: modules", state["modules"], tuple(self.modules))
        values = np.array([float(state["params"][name]) for name in self._space.names], np.float64)
        outside = (values < self._space.low) | (values > self._space.high)
        if outside.any():
            wrong = self._space.names[int(np.flatnonzero(outside)[0])]
            raise InputError(f"the saved state of {self.name} has {wrong} outside its bounds")
        for slot, module in self.modules.items():
            module.load_state_dict(state["modules"][slot])
        self._params = PolicyParams(self._space, values)
