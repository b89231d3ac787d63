"""Times as sources write them: numbers of a stated or a recognisable unit, or dates."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from saecache_rl.errors import InputError
from saecache_rl.workloads.options import choice
from saecache_rl.workloads.records import BadRecordError

#: A unit's length in seconds.
UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
#: Times after 2001 and before 2100, counted from 1970: their size tells their unit.
_EPOCH = (978_307_200.0, 4_102_444_800.0)
_FRACTION = re.compile(r"(\.\d{6})\d+")


def moment(value: object) -> float:
    """Return a time as a number: dates in seconds since 1970 (UTC where they name no zone), numbers as they are.

    Raises:
        BadRecordError: it is neither a date nor a number that is finite and not negative.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            return moment(float(text))
        except BadRecordError:
            raise
        except ValueError:
            pass
        try:
            parsed = datetime.fromisoformat(_FRACTION.sub(r"\1", text))
        except ValueError:
            raise BadRecordError(f"the time is {text[:40]!r}, expected a number or a date (ISO 8601)") from None
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadRecordError(f"the time is {str(value)[:40]}, expected a time that is not negative")
    return float(value)


def find_unit(times: Sequence[float], given: object, place: str) -> tuple[str, str]:
    """Return the unit of times, and how it is known.

    Args:
        times: as `moment` gives them.
        given: the option workload.time_unit; None: by the times, which must be moments since 1970.
        place: the file, for messages.

    Raises:
        InputError: the option is none of the units, or the times don't tell theirs.
    """
    if given is not None:
        return choice("workload.time_unit", given, UNITS), "given"
    low, high = min(times), max(times)
    for unit, scale in UNITS.items():
        if _EPOCH[0] <= low * scale and high * scale <= _EPOCH[1]:
            return unit, f"known by the size of the times, moments since 1970 ({int(low)} to {int(high)})"
    raise InputError(
        f"{place}: times from {low:g} to {high:g} don't tell their unit; give workload.time_unit=seconds, "
        "milliseconds or microseconds"
    )
