"""What a predictor is: a trace and its sessions flow in, a probability for each request flows out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

#: How long a session may be silent until it counts as over; the 99th percentile of chat gaps at SAECache's start values
#: (log-normal, mu 4.15, sigma 0.97) is 605 s.
HORIZON_SECONDS = 600.0


class Predictor(ABC):
    """Predicts, when a request is over, whether its session sends another.

    Learning is causal. The example of a request is settled positive when its session's next request arrives, and
    negative when none has arrived within a horizon; it is learned once, when settled. A prediction uses what was
    settled up to the arrival of its request: a trace that was cut short has the same leading predictions to the bit.
    """

    #: Its name in results.
    name: ClassVar[str]
    #: True where it reads the future; every output says so.
    oracle: ClassVar[bool] = False

    @abstractmethod
    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return (R,) the probability in [0, 1] that each request's session sends another request."""


def check_positive(owner: str, name: str, value: object) -> float:
    """Return an option as a float.

    Raises:
        InputError: it is not a positive, finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InputError(f"predictor {owner}: {name} is {value!r}; give a positive number")
    return float(value)
