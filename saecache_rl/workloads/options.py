"""The options of a workload, checked before anything is made: a mistake is one line that names the option."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from saecache_rl.errors import InputError, nearest

Options = TypeVar("Options")


@dataclass(frozen=True)
class Bounds:
    """The values that a number may have."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    open_low: bool = False  # low itself is excluded

    def says(self) -> str:
        """Return the bounds in words."""
        kind = "a whole number" if self.whole else "a number"
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if self.high >= 2**31 - 1:
            return kind if math.isinf(self.low) else f"{kind} {low}"
        return f"{kind} from {self.low:,.10g} to {self.high:,.10g}"


ANY = Bounds()
COUNT = Bounds(1, 2**31 - 1, whole=True)
NOT_NEGATIVE = Bounds(0)
POSITIVE = Bounds(0, open_low=True)
FRACTION = Bounds(0, 1)
AT_LEAST_ONE = Bounds(1)


def option(bounds: Bounds) -> Any:
    """Declare a field of an options dataclass that `read` fills and checks."""
    return field(metadata={"bounds": bounds})


def number(place: str, value: object, bounds: Bounds) -> float:
    """Return `value` where it is a number within `bounds`.

    Raises:
        InputError: it is not; `place` (for instance ``workload.requests``) is named.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good:
        assert isinstance(value, int | float)
        good = (value > bounds.low if bounds.open_low else value >= bounds.low) and value <= bounds.high
        good = good and (not bounds.whole or value == int(value))
    if not good:
        raise InputError(f"{place}={value}: must be {bounds.says()}")
    assert isinstance(value, int | float)
    return value


def whole(place: str, value: object, bounds: Bounds = COUNT) -> int:
    """Return `value` as an int where it is a whole number within `bounds`, else raise InputError."""
    return int(number(place, value, bounds))


def choice(place: str, value: object, known: Iterable[str]) -> str:
    """Return `value` where it is one of `known`, else raise InputError with the nearest."""
    names = list(known)
    if value not in names:
        raise InputError(f"{place}={value}: unknown; choose {' or '.join(names)}{nearest(str(value), names)}")
    return str(value)


def known_keys(place: str, values: Mapping[Any, Any], known: Iterable[str]) -> None:
    """Raise InputError for the first key of `values` that is not among `known`."""
    names = list(known)
    for key in values:
        if key not in names:
            raise InputError(f"{place}.{key}: no such option{nearest(str(key), names)}; known: {', '.join(names)}")


def read(kind: type[Options], place: str, values: object) -> Options:
    """Make an options dataclass from a mapping, each field checked by the bounds that it was declared with.

    Raises:
        InputError: an option is missing, unknown, not a number or out of bounds.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{place}={values}: must be a group of options")
    declared: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    known_keys(place, values, [f.name for f in declared])
    taken: dict[str, Any] = {}
    for f in declared:
        if f.name not in values:
            if f.default is MISSING:
                raise InputError(f"{place}.{f.name}: missing; conf/workload lists every option with its value")
            continue
        value = number(f"{place}.{f.name}", values[f.name], f.metadata["bounds"])
        taken[f.name] = int(value) if f.metadata["bounds"].whole else float(value)
    return kind(**taken)
