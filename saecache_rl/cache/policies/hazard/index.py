"""What a block is worth: Gittins' index of the time to its next use, as a curve over its age.

Holding a block costs its time; it earns 1 if it is used while held. The index at age a is the largest, over the age at
which one would give up, of P(used before that) / E[time held until then] (Gittins, Multi-armed bandit allocation
indices, 1989; for caches Aalto et al.). LHD's rank (Beckmann et al., NSDI 2018) is the same ratio with no giving up.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from saecache_rl.cache.lazy import SLACK
from saecache_rl.cache.policies.hazard.layout import BINS, CURVES, GROUPS, REALS
from saecache_rl.compiled import kernel
from saecache_rl.handles import square_root

GITTINS, FOREVER, RETURN, HAZARD = range(4)
#: By name: the index; without giving up (LHD); the probability of any return; the hazard of the present bin.
KINDS = {"gittins": GITTINS, "forever": FOREVER, "return": RETURN, "hazard": HAZARD}

_EDGES = np.concatenate([[0.0], 0.5 * np.exp(np.arange(BINS) / 3.0)])
#: Width of each bin in seconds.
WIDTHS = np.diff(_EDGES)
#: Upper edge of each group of two bins.
GROUP_ENDS = _EDGES[2::2].copy()
#: Nothing is certain: a hazard stays below this, so that what is beyond keeps some weight.
CERTAIN = 0.9999


_USED, _HELD = GROUPS, GROUPS + BINS


@kernel(types.void(REALS, types.int64, types.boolean, CURVES, types.int64), error_model="numpy")
def make_curve(hazard, kind, cold, curves, c):  # type: ignore[no-untyped-def]
    """Write a curve of the hazards by group, P(used in g | not before) in ``hazard[:GROUPS]``, to ``curves[c]``.

    Gittins' index at a bin is the largest average slope, over later points, of the line (time held, used): the first
    slope of their concave hull. From the last bin to the first, a run of bins is merged with the runs that follow it
    while those are steeper. `cold`: there is no evidence yet below half a second, where the curve would rise; the
    next bin's worth holds there.
    """
    reached = 1.0
    for g in range(GROUPS):
        p = 1.0 - square_root(1.0 - min(hazard[g], CERTAIN))
        for b in range(2 * g, 2 * g + 2):
            hazard[_USED + b] = reached * p
            hazard[_HELD + b] = reached * WIDTHS[b] * (1.0 - 0.5 * p)
            reached *= 1.0 - p
    if kind == HAZARD:
        for b in range(BINS):
            curves[c, b] = hazard[_USED + b] / hazard[_HELD + b]
    elif kind == GITTINS:
        # Runs stand on a stack that grows downwards from the last bin; the present run is at its end.
        top = BINS
        for b in range(BINS - 1, -1, -1):
            used = hazard[_USED + b]
            held = hazard[_HELD + b]
            while top < BINS and hazard[_USED + top] * held > used * hazard[_HELD + top]:
                used += hazard[_USED + top]
                held += hazard[_HELD + top]
                top += 1
            top -= 1
            hazard[_USED + top] = used
            hazard[_HELD + top] = held
            curves[c, b] = used / held
    else:  # from the last bin to the first, so that nothing is lost by subtracting
        used, held = 0.0, 0.0
        for b in range(BINS - 1, -1, -1):
            p = 1.0 - square_root(1.0 - min(hazard[b >> 1], CERTAIN))
            used = p + (1.0 - p) * used
            held = WIDTHS[b] * (1.0 - 0.5 * p) + (1.0 - p) * held
            curves[c, b] = used / held if kind == FOREVER else used
    if cold:
        curves[c, 0] = curves[c, 1]


@kernel(types.float64(types.float64), forceinline=True)
def place_of(age):  # type: ignore[no-untyped-def]
    """Where an age in seconds lies on a curve, in bins from 0 to BINS - 1."""
    if age <= 0.5:
        return 0.0
    return min(1.0 + 3.0 * math.log(2.0 * age), BINS - 1.0)


@kernel(types.float64(CURVES, types.int64, types.float64), forceinline=True)
def worth(curves, c, place):  # type: ignore[no-untyped-def]
    """The curve's value at a place, interpolated."""
    b = min(int(place), BINS - 2)
    low = np.float64(curves[c, b])
    return low + (place - b) * (np.float64(curves[c, b + 1]) - low)


@kernel(types.float64(CURVES, types.int64, types.float64, types.float64), forceinline=True)
def least_worth(curves, c, place, until):  # type: ignore[no-untyped-def]
    """The curve's lowest value between two places."""
    least = min(worth(curves, c, place), worth(curves, c, until))
    for b in range(int(place) + 1 if place > 0.0 else 0, int(until) + 1):
        least = min(least, np.float64(curves[c, b]))
    return least * SLACK
