"""Gaps between a session's requests, and the distribution they follow: four fitted, scored on held-out sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace

Reals = npt.NDArray[np.float64]

#: Fewer gaps than this tell nothing of their distribution.
LEAST = 20
#: What a gap not above zero is taken as, in seconds, where it is not left out; policies take no time for shorter.
SHORTEST = 0.001
#: Who answers the reply before a gap.
ALL, TOOL, NO_TOOL = "all", "a tool answers", "no tool call seen"
_RESAMPLES = 1000
#: Of the sessions, every so-manieth is held out.
_HELD_OUT = 5
_STEPS = 500
_TOLERANCE = 1e-9
_LEAST_SIGMA = 0.01
#: Of a Weibull distribution.
_SHAPES = (0.01, 200.0)
_LOG_ROOT_TWO_PI = 0.5 * float(np.log(2 * np.pi))
_FAMILIES = ("log-normal", "two log-normals", "exponential", "Weibull")


class Fit(NamedTuple):
    """A distribution fitted by maximum likelihood.

    parameters: by name; mu and sigma of ln seconds, scales in seconds.
    ks: Kolmogorov-Smirnov distance of all gaps to the fit to all of them; gaps of whole seconds, say, are spread evenly
        over their second for it.
    held_out: mean ln density of a held-out gap, in nats, of the fit to the others; nan where too few are held out.
    """

    family: str
    parameters: dict[str, float]
    ks: float
    held_out: float


class LogNormal(NamedTuple):
    """Mean and deviation of ln seconds, each with its 95 % bootstrap interval over sessions."""

    mu: float
    sigma: float
    mu_interval: tuple[float, float]
    sigma_interval: tuple[float, float]


class Gaps(NamedTuple):
    """The gaps of one kind.

    kind: in words. seconds: (N,) those above zero, sorted. zero: how many were not above zero; times of whole seconds,
        and replies said to end after the next request began, make such ones.
    fits: to those above zero; none where there are fewer than `LEAST`.
    above_zero: the log-normal of these, None likewise.
    floored: with the others taken as `SHORTEST`; None too where there are no others.
    """

    kind: str
    seconds: Reals
    zero: int
    fits: list[Fit]
    above_zero: LogNormal | None
    floored: LogNormal | None

    @property
    def best(self) -> Fit | None:
        """The fit with the highest held-out likelihood, or with the lowest distance where none was scored."""
        if not self.fits:
            return None
        scored = [f for f in self.fits if np.isfinite(f.held_out)]
        return max(scored, key=lambda f: f.held_out) if scored else min(self.fits, key=lambda f: f.ks)


def _normal_log_density(x: Reals, mu: float, sigma: float) -> Reals:
    return np.asarray(-0.5 * ((x - mu) / sigma) ** 2 - np.log(sigma) - _LOG_ROOT_TWO_PI)


def _fit_log_normal(gaps: Reals) -> dict[str, float]:
    logs = np.log(gaps)
    return {"mu": float(logs.mean()), "sigma": max(float(logs.std()), _LEAST_SIGMA)}


def _fit_mixture(gaps: Reals) -> dict[str, float]:
    """Expectation-maximisation (Dempster, Laird and Rubin 1977) on ln seconds, from the halves below and above 0.7."""
    logs = np.sort(np.log(gaps))
    cut = max(1, int(0.7 * len(logs)))
    parts = (logs[:cut], logs[cut:] if cut < len(logs) else logs)
    weight = np.array([0.7, 0.3])
    mu = np.array([float(p.mean()) for p in parts])
    sigma = np.array([max(float(p.std()), 0.1) for p in parts])
    before = -np.inf
    for _ in range(_STEPS):
        joint = np.stack([np.log(weight[k]) + _normal_log_density(logs, mu[k], sigma[k]) for k in (0, 1)])
        total = logsumexp(joint, axis=0)
        share = np.exp(joint - total)
        mass = np.maximum(share.sum(axis=1), 1e-12)
        weight = mass / mass.sum()
        mu = (share @ logs) / mass
        sigma = np.sqrt(np.maximum((share * (logs - mu[:, None]) ** 2).sum(axis=1) / mass, _LEAST_SIGMA**2))
        likelihood = float(total.mean())
        if likelihood - before < _TOLERANCE:
            break
        before = likelihood
    first, second = np.argsort(mu)
    return {
        "weight_1": float(weight[first]),
        "mu_1": float(mu[first]),
        "sigma_1": float(sigma[first]),
        "weight_2": float(weight[second]),
        "mu_2": float(mu[second]),
        "sigma_2": float(sigma[second]),
    }


def _fit_exponential(gaps: Reals) -> dict[str, float]:
    return {"mean": float(gaps.mean())}


def _fit_weibull(gaps: Reals) -> dict[str, float]:
    """Solve the likelihood equation of the shape; gaps that hardly differ have the largest shape allowed."""
    logs = np.log(gaps)
    mean = float(logs.mean())

    def slope(shape: float) -> float:
        weights = np.exp(shape * (logs - logs.max()))
        return float((weights @ logs) / weights.sum() - 1 / shape - mean)

    low, high = _SHAPES
    shape = high if slope(high) <= 0 else low if slope(low) >= 0 else float(brentq(slope, low, high))
    scale = float(np.exp(logs.max() + np.log(np.mean(np.exp(shape * (logs - logs.max())))) / shape))
    return {"shape": shape, "scale": scale}


_FIT: dict[str, Callable[[Reals], dict[str, float]]] = {
    "log-normal": _fit_log_normal,
    "two log-normals": _fit_mixture,
    "exponential": _fit_exponential,
    "Weibull": _fit_weibull,
}


def log_density(family: str, parameters: dict[str, float], gaps: Reals) -> Reals:
    """Return ln of the density at each gap, in seconds."""
    p = parameters
    if family == "log-normal":
        logs = np.log(gaps)
        return _normal_log_density(logs, p["mu"], p["sigma"]) - logs
    if family == "two log-normals":
        logs = np.log(gaps)
        parts = [np.log(p[f"weight_{k}"]) + _normal_log_density(logs, p[f"mu_{k}"], p[f"sigma_{k}"]) for k in (1, 2)]
        return np.asarray(logsumexp(np.stack(parts), axis=0) - logs)
    if family == "exponential":
        return np.asarray(-gaps / p["mean"] - np.log(p["mean"]))
    return np.asarray(stats.weibull_min.logpdf(gaps, p["shape"], scale=p["scale"]))


def distribution(family: str, parameters: dict[str, float], gaps: Reals) -> Reals:
    """Return the cumulative distribution at each gap, in seconds."""
    p = parameters
    if family == "log-normal":
        return np.asarray(ndtr((np.log(gaps) - p["mu"]) / p["sigma"]))
    if family == "two log-normals":
        logs = np.log(gaps)
        parts = [p[f"weight_{k}"] * ndtr((logs - p[f"mu_{k}"]) / p[f"sigma_{k}"]) for k in (1, 2)]
        return np.asarray(parts[0] + parts[1])
    if family == "exponential":
        return np.asarray(-np.expm1(-gaps / p["mean"]))
    return np.asarray(stats.weibull_min.cdf(gaps, p["shape"], scale=p["scale"]))


def spread(gaps: Reals) -> Reals:
    """Return gaps sorted and, where their times are of a coarse resolution, spread evenly within it."""
    ordered = np.sort(gaps)
    values, first, count = np.unique(np.round(ordered, 3), return_index=True, return_counts=True)
    if len(values) > 0.1 * len(ordered) or len(values) < 2:
        return ordered
    step = float(np.median(np.diff(values[:100])))
    rank = np.arange(len(ordered)) - np.repeat(first, count)
    within = (rank + 0.5) / np.repeat(count, count) - 0.5
    return np.maximum(np.repeat(values, count) + step * within, 1e-6)


def fit(gaps: Reals, session: npt.NDArray[np.int32]) -> list[Fit]:
    """Fit all families to (N,) gaps above zero; `session` (N,) says which gaps are held out together."""
    held = session % _HELD_OUT == 0
    scored = held.sum() >= LEAST and (~held).sum() >= LEAST
    ordered = spread(gaps)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    fits = []
    for family in _FAMILIES:
        parameters = _FIT[family](gaps)
        curve = distribution(family, parameters, ordered)
        ks = float(max((steps[1:] - curve).max(), (curve - steps[:-1]).max()))
        score = float("nan")
        if scored:
            score = float(log_density(family, _FIT[family](gaps[~held]), gaps[held]).mean())
        fits.append(Fit(family, parameters, ks, score))
    return fits


def log_normal(gaps: Reals, session: npt.NDArray[np.int32]) -> LogNormal:
    """Return the log-normal of (N,) gaps above zero; `session` (N,) says which gaps are drawn again together."""
    logs = np.log(gaps)
    _, own = np.unique(session, return_inverse=True)
    count, total, squares = (np.bincount(own, weights) for weights in (None, logs, logs * logs))
    random = np.random.Generator(np.random.PCG64(0))
    mu, sigma = np.empty(_RESAMPLES), np.empty(_RESAMPLES)
    for n in range(_RESAMPLES):
        drawn = random.integers(0, len(count), len(count))
        size = count[drawn].sum()
        mu[n] = total[drawn].sum() / size
        sigma[n] = np.sqrt(max(squares[drawn].sum() / size - mu[n] ** 2, 0.0))

    def interval(values: Reals) -> tuple[float, float]:
        low, high = np.percentile(values, [2.5, 97.5])
        return float(low), float(high)

    return LogNormal(float(logs.mean()), float(logs.std()), interval(mu), interval(sigma))


def _gaps(kind: str, gaps: Reals, session: npt.NDArray[np.int32]) -> Gaps:
    known = np.isfinite(gaps)
    positive = known & (gaps > 0)
    kept = gaps[positive]
    zero = int(np.count_nonzero(known & ~positive))
    if len(kept) < LEAST:
        return Gaps(kind, np.sort(kept), zero, [], None, None)
    above = log_normal(kept, session[positive])
    floored = log_normal(np.where(positive, gaps, SHORTEST)[known], session[known]) if zero else None
    return Gaps(kind, np.sort(kept), zero, fit(kept, session[positive]), above, floored)


def measure(trace: Trace, sessions: Sessions) -> list[Gaps]:
    """Return the gaps, all, and by who answers the reply before: a tool, or a person.

    From start to start of requests; where the source says how long replies took, also from a reply's end to the next
    request's start, the time that the tool or the person took, of the replies that it says it of. A tool answers where
    the source says that the reply ended for one; in all others no tool call is seen, which may mean that the
    source does not say.
    """
    follows = np.flatnonzero(sessions.turn > 0)
    before = _previous(sessions)[follows]
    session = sessions.session[follows]
    tool = (trace.flags[before] & ENDED_FOR_TOOL) != 0
    found = []
    starts = sessions.gap_seconds[follows]
    kinds = [("from start to start", starts)]
    if trace.reply_seconds is not None:
        kinds.append(("from a reply's end to the next start", starts - trace.reply_seconds[before]))
    for name, gaps in kinds:
        found.append(_gaps(f"{ALL}, {name}", gaps, session))
        if tool.any() and not tool.all():
            found.append(_gaps(f"{TOOL}, {name}", gaps[tool], session[tool]))
            found.append(_gaps(f"{NO_TOOL}, {name}", gaps[~tool], session[~tool]))
    return [gaps for gaps in found if len(gaps.seconds) or gaps.zero]


def _previous(sessions: Sessions) -> npt.NDArray[np.int64]:
    """Return (R,) the request before in its session; anything at turn 0."""
    order = np.argsort(sessions.session, kind="stable")
    previous = np.zeros(len(order), np.int64)
    previous[order[1:]] = order[:-1]
    return previous
