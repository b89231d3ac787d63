"""The predictors without features: always, never, by turn count, and the true answer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.predictor.base import HORIZON_SECONDS, Predictor, check_positive
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace


class Always(Predictor):
    """Every session goes on."""

    name = "always"

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return ones."""
        return np.ones(trace.num_requests, np.float64)


class Never(Predictor):
    """No session goes on."""

    name = "never"

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(trace.num_requests, np.float64)


class TrueAnswer(Predictor):
    """What will be, by the sessions given: an upper bound for every predictor."""

    name = "true_answer"
    oracle = True

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return 1 where a later request of the same session is in the trace, else 0."""
        last = np.full(trace.num_requests + 1, -1, np.int64)
        np.maximum.at(last, sessions.session, np.arange(trace.num_requests))
        return (last[sessions.session] > np.arange(trace.num_requests)).astype(np.float64)


class TurnCount(Predictor):
    """The share of settled requests of the same turn number whose session went on.

    Each turn number has one of either outcome in advance.
    """

    name = "turn_count"

    def __init__(self, horizon_seconds: float = HORIZON_SECONDS) -> None:
        """Set how long a session may be silent until it counts as over."""
        self.horizon_seconds = check_positive(self.name, "horizon_seconds", horizon_seconds)

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return the shares as they stand when each request is over."""
        result: npt.NDArray[np.float64] = turn_count_run(
            trace.arrival, sessions.session, sessions.turn, self.horizon_seconds
        )
        return result


@compiled(types.float64[::1](types.float64[::1], types.int32[::1], types.int32[::1], types.float64))
def turn_count_run(arrival, session, turn, horizon_seconds):  # type: ignore[no-untyped-def]
    """Predict and learn request by request; (R,) columns in, (R,) probabilities out."""
    requests = len(arrival)
    result = np.empty(requests, np.float64)
    latest = np.full(requests + 1, -1, np.int64)  # by session
    settled = np.zeros(requests, np.uint8)
    most = 0
    for r in range(requests):
        most = max(most, turn[r])
    ended, continued = np.ones(most + 1, np.float64), np.ones(most + 1, np.float64)
    oldest = 0  # whose horizon may run out next
    for r in range(requests):
        while oldest < r and arrival[oldest] + horizon_seconds < arrival[r]:
            if not settled[oldest]:
                settled[oldest] = 1
                ended[turn[oldest]] += 1.0
            oldest += 1
        before = latest[session[r]]
        latest[session[r]] = r
        if before >= 0 and not settled[before]:
            settled[before] = 1
            continued[turn[before]] += 1.0
        result[r] = continued[turn[r]] / (continued[turn[r]] + ended[turn[r]])
    return result
