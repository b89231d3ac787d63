"""Labels, splits, training and scores of predictors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from saecache_rl.predictor.features import WordColumns, figures
from saecache_rl.predictor.trained import Weights
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

Reals = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_BINS = 10


class Split(NamedTuple):
    """Requests to train on and to test on, (R,) each, with labels: does the session go on within the horizon?

    dropped: requests whose label is not known in time.
    """

    name: str
    train: Mask
    test: Mask
    labels: Mask
    dropped: int


def next_arrival(trace: Trace, sessions: Sessions) -> Reals:
    """Return (R,) when each request's session sends the next one; infinite where it does not."""
    order = np.argsort(sessions.session, kind="stable")
    following = np.full(trace.num_requests, np.inf)
    same = sessions.session[order[1:]] == sessions.session[order[:-1]]
    following[order[:-1][same]] = trace.arrival[order[1:][same]]
    return following


def _labelled(trace: Trace, sessions: Sessions, horizon: float, now: float) -> tuple[Mask, Mask]:
    """Return whether each request's session goes on within the horizon, and whether that is known at `now`.

    Known is what lies a horizon back, whatever its outcome: to count those that have gone on already, and not those
    that may still end, would make the rest look endless.
    """
    return next_arrival(trace, sessions) <= trace.arrival + horizon, trace.arrival + horizon <= now


def by_session(trace: Trace, sessions: Sessions, horizon: float, share: float, seed: int) -> Split:
    """Hold out a part of the sessions, whole ones; all is labelled as at the end of the trace."""
    random = np.random.default_rng(seed)
    held = random.random(int(sessions.session.max()) + 1) < share
    labels, known = _labelled(trace, sessions, horizon, float(trace.arrival[-1]))
    test = held[sessions.session]
    return Split("by session", ~test & known, test & known, labels, int(np.count_nonzero(~known)))


def by_time(trace: Trace, sessions: Sessions, horizon: float, share: float) -> Split:
    """Hold out the last part of the requests; training knows only what was known when they began."""
    cut = float(np.quantile(trace.arrival, 1 - share))
    _, known_before = _labelled(trace, sessions, horizon, float(np.nextafter(cut, -np.inf)))
    labels, known_after = _labelled(trace, sessions, horizon, float(trace.arrival[-1]))
    test = (trace.arrival >= cut) & known_after
    return Split("by time", known_before, test, labels, int(np.count_nonzero(~known_before & ~test)))


class Recipe(NamedTuple):
    """How a regression is trained; see `TrainPredictorSettings`."""

    buckets: int
    epochs: int
    step: float
    penalty: float
    seed: int


def train(trace: Trace, sessions: Sessions, chosen: Mask, labels: Mask, recipe: Recipe) -> Weights:
    """Fit a logistic regression with L2 penalty by full-batch AdaGrad (Duchi, Hazan and Singer, JMLR 12, 2011)."""
    known = figures(trace, sessions)
    words = WordColumns(trace, recipe.buckets) if recipe.buckets else None
    weights = Weights(np.zeros(known.shape[1]), np.zeros(recipe.buckets))
    squares = [np.full(known.shape[1], 1e-12), np.full(recipe.buckets, 1e-12)]
    count = max(int(chosen.sum()), 1)
    target = labels.astype(np.float64)
    # A pass over all requests is one vector operation, so that ten steps make an epoch's worth of progress.
    for _ in range(10 * recipe.epochs):
        score = known @ weights.figures
        if words is not None:
            score = score + words.times(weights.words)
        error = np.where(chosen, expit(score) - target, 0.0) / count
        gradients = [known.T @ error + recipe.penalty * weights.figures]
        if words is not None:
            gradients.append(words.transposed_times(error) + recipe.penalty * weights.words)
        for part, square, gradient in zip((weights.figures, weights.words), squares, gradients, strict=False):
            square += gradient**2
            part -= 4 * recipe.step * gradient / np.sqrt(square)
    return weights


def turn_count(sessions: Sessions, chosen: Mask, labels: Mask) -> Reals:
    """Return (R,) the share of training requests of the same turn that went on, one of each in advance."""
    turns = int(sessions.turn.max()) + 1
    went_on = np.bincount(sessions.turn[chosen & labels], minlength=turns) + 1.0
    ended = np.bincount(sessions.turn[chosen & ~labels], minlength=turns) + 1.0
    return np.asarray((went_on / (went_on + ended))[sessions.turn])


class Scores(NamedTuple):
    """How good predictions are at a threshold of one half; `calibration_error` is the mean gap over ten bins of equal
    width, weighted by their requests, between what was predicted and what happened."""

    f1: float
    mcc: float
    log_loss: float
    brier: float
    calibration_error: float
    calibration: list[tuple[float, float, int]]


def score(predicted: Reals, labels: Mask) -> Scores:
    """Score (N,) probabilities against what happened."""
    yes = predicted >= 0.5
    tp, fp = float(np.sum(yes & labels)), float(np.sum(yes & ~labels))
    fn, tn = float(np.sum(~yes & labels)), float(np.sum(~yes & ~labels))
    f1 = 2 * tp / (2 * tp + fp + fn) if tp else 0.0
    root = float(np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
    clipped = np.clip(predicted, 1e-9, 1 - 1e-9)
    bins = np.minimum((predicted * _BINS).astype(np.int64), _BINS - 1)
    count = np.bincount(bins, minlength=_BINS)
    told = np.bincount(bins, predicted, minlength=_BINS) / np.maximum(count, 1)
    happened = np.bincount(bins, labels, minlength=_BINS) / np.maximum(count, 1)
    return Scores(
        f1=f1,
        mcc=(tp * tn - fp * fn) / root if root else 0.0,
        log_loss=float(-np.mean(np.where(labels, np.log(clipped), np.log1p(-clipped)))),
        brier=float(np.mean((predicted - labels) ** 2)),
        calibration_error=float(np.sum(count * np.abs(told - happened)) / max(len(labels), 1)),
        calibration=[(float(told[b]), float(happened[b]), int(count[b])) for b in range(_BINS) if count[b]],
    )
