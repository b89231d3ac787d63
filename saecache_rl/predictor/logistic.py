"""The predictor of the simulation: logistic regression on what a server knows of a request, learned online."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.predictor.base import HORIZON_SECONDS, Predictor, check_positive
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace

#: The features of a request, all known when it is over.
FEATURES = (
    "constant",
    "first_turn",
    "ln_turn",  # ln(1 + turn), scaled as the other logarithms
    "ln_prompt_tokens",
    "ln_output_tokens",
    "has_tools",
    "ended_for_tool",
    "agentic",
    "ln_past_gap",  # ln(1 + seconds since the session's request before)
)
_NUM_FEATURES = len(FEATURES)
#: Brings logarithms of tokens and seconds near [0, 1].
_LOG_SCALE = 0.1


class OnlineLogistic(Predictor):
    """Logistic regression by AdaGrad (Duchi, Hazan and Singer, JMLR 12, 2011), one step for each settled example."""

    name = "logistic"

    def __init__(self, horizon_seconds: float = HORIZON_SECONDS, step: float = 0.3) -> None:
        """Set how long a session may be silent until it counts as over, and AdaGrad's step."""
        self.horizon_seconds = check_positive(self.name, "horizon_seconds", horizon_seconds)
        self.step = check_positive(self.name, "step", step)

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return the predictions as they stand when each request is over."""
        result: npt.NDArray[np.float64] = logistic_run(
            trace.arrival,
            trace.prompt_tokens,
            trace.output_tokens,
            trace.flags,
            sessions.session,
            sessions.turn,
            sessions.gap_seconds,
            sessions.agentic,
            self.horizon_seconds,
            self.step,
        )
        return result


_I4, _F8, _U1 = types.int32[::1], types.float64[::1], types.uint8[::1]


@compiled(types.float64(_F8, types.float64[:, ::1], types.int64))
def _probability(weights, features, r):  # type: ignore[no-untyped-def]
    z = 0.0
    for i in range(_NUM_FEATURES):
        z += weights[i] * features[r, i]
    if z >= 0.0:
        return 1.0 / (1.0 + math.exp(-min(z, 700.0)))
    small = math.exp(max(z, -700.0))
    return small / (1.0 + small)


@compiled(types.void(_F8, _F8, types.float64[:, ::1], types.int64, types.float64, types.float64))
def _learn(weights, squares, features, r, label, step):  # type: ignore[no-untyped-def]
    error = _probability(weights, features, r) - label
    for i in range(_NUM_FEATURES):
        gradient = error * features[r, i]
        if gradient != 0.0:
            squares[i] += gradient * gradient
            weights[i] -= step * gradient / math.sqrt(squares[i])


@compiled(_F8(_F8, _I4, _I4, _U1, _I4, _I4, _F8, _U1, types.float64, types.float64))
def logistic_run(  # type: ignore[no-untyped-def]
    arrival, prompt_tokens, output_tokens, flags, session, turn, gap_seconds, agentic, horizon_seconds, step
):
    """Predict and learn request by request; (R,) columns in, (R,) probabilities out."""
    requests = len(arrival)
    result = np.empty(requests, np.float64)
    features = np.empty((requests, _NUM_FEATURES), np.float64)
    weights = np.zeros(_NUM_FEATURES, np.float64)
    squares = np.zeros(_NUM_FEATURES, np.float64)
    latest = np.full(requests + 1, -1, np.int64)  # by session
    settled = np.zeros(requests, np.uint8)
    oldest = 0  # whose horizon may run out next
    for r in range(requests):
        while oldest < r and arrival[oldest] + horizon_seconds < arrival[r]:
            if not settled[oldest]:
                settled[oldest] = 1
                _learn(weights, squares, features, oldest, 0.0, step)
            oldest += 1
        before = latest[session[r]]
        latest[session[r]] = r
        if before >= 0 and not settled[before]:
            settled[before] = 1
            _learn(weights, squares, features, before, 1.0, step)
        gap = gap_seconds[r] if gap_seconds[r] > 0.0 else 0.0  # not a number at turn 0
        features[r, 0] = 1.0
        features[r, 1] = 1.0 if turn[r] == 0 else 0.0
        features[r, 2] = math.log(1.0 + turn[r]) * _LOG_SCALE
        features[r, 3] = math.log(1.0 + prompt_tokens[r]) * _LOG_SCALE
        features[r, 4] = math.log(1.0 + output_tokens[r]) * _LOG_SCALE
        features[r, 5] = 1.0 if flags[r] & HAS_TOOLS else 0.0
        features[r, 6] = 1.0 if flags[r] & ENDED_FOR_TOOL else 0.0
        features[r, 7] = 1.0 if agentic[r] else 0.0
        features[r, 8] = math.log(1.0 + gap) * _LOG_SCALE
        result[r] = _probability(weights, features, r)
    return result
