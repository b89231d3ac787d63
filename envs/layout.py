"""An observation as a vector whose every entry has a name, bounds and a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """One number of an observation: its name, inclusive bounds and meaning."""

    name: str
    low: float
    high: float
    meaning: str


@dataclass(frozen=True)
class Layout:
    """The entries of an observation, in order."""

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(entry.name for entry in self.entries)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each name."""
        return {name: i for i, name in enumerate(self.names)}

    def box(self) -> Space[npt.NDArray[np.float32]]:
        """Return the observation space: float32, finite bounds."""
        return Box(self.low.astype(np.float32), self.high.astype(np.float32), dtype=np.float32)

    def read(self, observation: npt.ArrayLike) -> dict[str, float]:
        """Return an observation, (n,), by name."""
        return {name: float(value) for name, value in zip(self.names, np.asarray(observation), strict=True)}

    @cached_property
    def low(self) -> Values:
        """Smallest value of each entry."""
        return np.array([entry.low for entry in self.entries], np.float64)

    @cached_property
    def high(self) -> Values:
        """Largest value of each entry."""
        return np.array([entry.high for entry in self.entries], np.float64)
