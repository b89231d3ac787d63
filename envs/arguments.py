"""What the environments are made with, read alike by all: each wrong value is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from saecache_rl.configured import make
from saecache_rl.engines.capacity import auto_capacity, smallest_capacity
from saecache_rl.errors import InputError, nearest
from saecache_rl.predictor.base import Predictor
from saecache_rl.workloads.trace import Trace


def trace_of(workload: Trace | str | Mapping[str, Any]) -> Trace:
    """Return a trace; made by a name of conf/workload or a mapping with `_target_`, if it is not one.

    Raises:
        InputError: it gives something else.
    """
    trace = workload if isinstance(workload, Trace) else make("workload", workload)
    if not isinstance(trace, Trace):
        raise InputError(f"workload: {workload!r} gave a {type(trace).__name__}, expected a Trace")
    return trace


def predictor_of(predictor: Predictor | str | Mapping[str, Any] | None) -> Predictor | None:
    """Return a predictor, made by a name of conf/predictor or a mapping, if it is not one; None: none.

    Raises:
        InputError: it gives something else.
    """
    made = make("predictor", predictor) if isinstance(predictor, str | Mapping) else predictor
    if made is not None and not isinstance(made, Predictor):
        raise InputError(f"predictor: {predictor!r} is no predictor; give a name of conf/predictor")
    return made


def known_choice(option: str, value: object, known: tuple[str, ...]) -> None:
    """Raise an InputError that names the nearest, unless `value` is among `known`."""
    if value not in known:
        raise InputError(f"{option}={value}: unknown{nearest(str(value), known)}; there is {', '.join(known)}")


def whole_number(option: str, value: object, rule: str) -> int:
    """Return a positive whole number, given as any type of number; else raise an InputError that states `rule`."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number >= 1 and number == int(number):
            return int(number)
    raise InputError(f"{option}={value}: {rule}; give a positive whole number")


def capacity(num_blocks: object, trace: Trace) -> int:
    """Return the capacity for a trace: the number itself, or that of "auto".

    Raises:
        InputError: no whole number, or below the largest request.
    """
    if isinstance(num_blocks, str):
        known_choice("num_blocks", num_blocks, ("auto", "a number of blocks"))
        return auto_capacity(trace)
    number = whole_number("num_blocks", num_blocks, "a capacity is a number of blocks, or 'auto'")
    if number < smallest_capacity(trace):
        raise InputError(
            f"num_blocks={number}: the largest request of {trace.name} alone needs {smallest_capacity(trace)} blocks "
            f"of {trace.block_size} tokens; raise it, or use 'auto'"
        )
    return number
