"""What the environments' episodes have in common: when a step may be taken, and how an environment is pickled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from saecache_rl.errors import InputError

Action = TypeVar("Action")
Observation = npt.NDArray[np.float32]


class EpisodeEnv(gymnasium.Env[Observation, Action], ABC):
    """An environment whose episode is one run of its `engine` through a trace."""

    #: Serves the requests.
    engine: Any
    _ready = False

    @abstractmethod
    def _engine(self) -> Any:
        """Make the engine, empty."""

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Start an episode: the engine is empty, before its first request.

        Raises:
            InputError: `options` has an entry; there are none.
        """
        if options:
            raise InputError(f"reset takes no options, not {sorted(options)}; give them when the environment is made")
        super().reset(seed=seed)
        self.engine.reset()
        self._ready = True

    def _check_ready(self) -> None:
        """Raise ResetNeeded before the first `reset`, and after the last request."""
        if not self._ready or self.engine.done:
            raise ResetNeeded("every request has been served; call reset()" if self._ready else "call reset()")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the engine's compiled functions; its state goes along as arrays."""
        return {**self.__dict__, "engine": self.engine.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.engine = self._engine()
        self.engine.load_state_dict(state["engine"])
