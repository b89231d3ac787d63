"""The parameters of a policy that an agent may move: names, bounds, scales, and their place in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError, nearest


@dataclass(frozen=True)
class Param:
    """One tunable number of a policy.

    Attributes:
        name: dotted, for instance ``alpha.chat``.
        start: its value before anything is learned.
        low, high: inclusive bounds.
        scale: ``log`` for positive scales, whose logarithm maps linearly to an action; else ``linear``.
        description: what it does, with its unit.
    """

    name: str
    start: float
    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    description: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.start, bool) or not isinstance(self.start, int | float):
            raise InputError(f"parameter {self.name}: start is {self.start!r}; give a number")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.start <= self.high):
            raise InputError(f"parameter {self.name}: start {self.start} is outside [{self.low}, {self.high}]")
        if self.scale == "log" and self.low <= 0:
            raise InputError(f"parameter {self.name}: a log scale needs a positive lower bound, not {self.low}")


@dataclass(frozen=True)
class ParamSpace:
    """The ordered parameters of a policy; maps values to actions in [-1, 1] and back."""

    params: tuple[Param, ...] = ()

    def __len__(self) -> int:
        return len(self.params)

    def __iter__(self) -> Iterator[Param]:
        return iter(self.params)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(p.name for p in self.params)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def low(self) -> npt.NDArray[np.float64]:
        """(n,) lower bounds."""
        return np.array([p.low for p in self.params], np.float64)

    @cached_property
    def high(self) -> npt.NDArray[np.float64]:
        """(n,) upper bounds."""
        return np.array([p.high for p in self.params], np.float64)

    @cached_property
    def _log(self) -> npt.NDArray[np.bool_]:
        return np.array([p.scale == "log" for p in self.params], np.bool_)

    def start(self) -> PolicyParams:
        """The start values."""
        return PolicyParams(self, np.array([p.start for p in self.params], np.float64))

    def from_action(self, action: npt.ArrayLike) -> PolicyParams:
        """Map an action, (n,) in [-1, 1], to values: linear between the bounds, or between their logarithms.

        Raises:
            InputError: another shape, or an entry that is not finite. Entries outside [-1, 1] are clipped.
        """
        a = np.asarray(action, np.float64)
        if a.shape != (len(self),):
            raise InputError(f"an action has shape ({len(self)},), one entry a parameter, not {a.shape}")
        if not np.isfinite(a).all():
            raise InputError(f"the action for {self.names[int(np.flatnonzero(~np.isfinite(a))[0])]} is not finite")
        share = (np.clip(a, -1.0, 1.0) + 1.0) / 2.0
        low, high = self._scaled_bounds
        scaled = low + share * (high - low)
        values = np.where(self._log, np.exp(np.where(self._log, scaled, 0.0)), scaled)
        return PolicyParams(self, np.clip(values, self.low, self.high))

    def to_action(self, params: PolicyParams) -> npt.NDArray[np.float64]:
        """Map values to the action, (n,) in [-1, 1], that gives them up to rounding."""
        low, high = self._scaled_bounds
        scaled = np.where(self._log, np.log(np.where(self._log, params.values, 1.0)), params.values)
        width = np.where(high > low, high - low, 1.0)
        return np.clip(2.0 * (scaled - low) / width - 1.0, -1.0, 1.0)

    @cached_property
    def _scaled_bounds(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        def scaled(bound: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return np.where(self._log, np.log(np.where(self._log, bound, 1.0)), bound)

        return scaled(self.low), scaled(self.high)


@dataclass(frozen=True, eq=False)
class PolicyParams:
    """Values of a policy's parameters. Immutable; read with ``params["alpha.chat"]``, change with `replace`."""

    space: ParamSpace
    values: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.space),):
            raise InputError(f"expected {len(self.space)} parameter values, got shape {self.values.shape}")
        if not np.isfinite(self.values).all():
            bad = self.space.names[int(np.flatnonzero(~np.isfinite(self.values))[0])]
            raise InputError(f"parameter {bad} is not finite")
        self.values.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PolicyParams):
            return NotImplemented
        return self.space == other.space and np.array_equal(self.values, other.values)

    def __getitem__(self, name: str) -> float:
        if name not in self.space.index:
            raise InputError(f"no parameter '{name}'{nearest(name, self.space.names)}")
        return float(self.values[self.space.index[name]])

    def replace(self, changes: Mapping[str, float]) -> PolicyParams:
        """Return a copy with the named values, each clipped to its bounds.

        Raises:
            InputError: an unknown name, or a value that is not finite.
        """
        values = self.values.copy()
        for name, value in changes.items():
            if name not in self.space.index:
                raise InputError(f"no parameter '{name}'{nearest(name, self.space.names)}")
            i = self.space.index[name]
            if not math.isfinite(value):
                raise InputError(f"parameter {name} is not finite")
            values[i] = min(max(value, self.space.low[i]), self.space.high[i])
        return PolicyParams(self.space, values)

    def as_dict(self) -> dict[str, float]:
        """Name to value."""
        return {name: float(value) for name, value in zip(self.space.names, self.values, strict=True)}
