"""The additive hazard: a logistic model of use by age group, learned online from whole cohorts.

z(g) = A_g + sum over features k of V[f_k] + U[f_k, region(g)]; P(used in g | not before) = 1 / (1 + e^-z). A segment
gives an example for group g when it has passed the group's end, used then or not, and not a moment earlier: counted at
the use, the uses of a cohort would come before its failures, and every hazard would be too high at first. AdaGrad
(Duchi et al., JMLR 2011) with one step size each for A, U, V.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from saecache_rl.cache.policies.hazard.features import ROWS, features_of
from saecache_rl.cache.policies.hazard.index import GROUP_ENDS
from saecache_rl.cache.policies.hazard.layout import CENSORED, GROUPS, IDS, REALS, STATE
from saecache_rl.cache.policies.hazard.table import HALVING, SEEN_IN_GROUP_0, halve, learn_table, predict_table
from saecache_rl.compiled import kernel
from saecache_rl.handles import square_root

ADDITIVE, TABLE = 0, 1
REGIONS = 7
#: Region of each group: ages share a feature's U within one.
REGION = np.clip(np.floor((np.log(GROUP_ENDS) - math.log(1.5)) / 1.3), 0, REGIONS - 1).astype(np.int64)

# Places in `cache.reals`.
BASE = 0  # A_g
BASE_SQUARES = BASE + GROUPS  # sums of squared gradients
SEEN = BASE_SQUARES + GROUPS  # weight of the examples of each group
WEIGHTS = SEEN + GROUPS  # ROWS rows of V, U by region, and the sums of squared gradients of both
ROW = 2 * (1 + REGIONS)
SQUARES = 1 + REGIONS
NUM_REALS = WEIGHTS + ROWS * ROW

# Places in `cache.params`.
STEP_BASE, STEP_REGION, STEP_FEATURE = range(3)

#: P(used in a group) before anything is learned: constant per group of log age, a hazard like 1 / age, so LRU.
START = math.log(0.15 / 0.85)
SHRINK = 1e-4  # L2
#: Ages without evidence go on from the age before, falling by this much in z, with the weight of so many examples.
FALL = 0.6
PRIOR = 20.0
#: Beyond this, a z is certain, and exp is out of the way of overflow.
LIMIT = 30.0
#: Numbers that a processor handles at once, at most.
VECTOR = 8


def start() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`cache.reals` before anything is learned."""
    reals = np.zeros(NUM_REALS, np.float64)
    reals[BASE:BASE_SQUARES] = START
    reals[BASE_SQUARES:SEEN] = 1.0
    rows = reals[WEIGHTS:].reshape(ROWS, ROW)
    rows[:, SQUARES:] = 1.0
    return reals


@kernel(types.float64(types.float64), forceinline=True)
def sigmoid(z):  # type: ignore[no-untyped-def]
    """1 / (1 + e^-z), with z held within +-LIMIT."""
    return 1.0 / (1.0 + math.exp(-min(max(z, -LIMIT), LIMIT)))


@kernel(types.void(REALS, REALS, types.float64, types.float64, types.float64), forceinline=True, error_model="numpy")
def step(weights, squares, size, slope, shrink):  # type: ignore[no-untyped-def]
    """AdaGrad's step of `size` for each of the weights of one example; a loop that the compiler makes vectors of."""
    for k in range(len(weights)):
        gradient = slope + shrink * weights[k]
        square = squares[k] + gradient * gradient
        squares[k] = square
        weights[k] -= size * gradient / square_root(square)


@kernel(
    types.void(REALS, REALS, IDS, types.int64, REALS, types.int64, types.float64, types.float64), error_model="numpy"
)
def learn_additive(reals, params, ids, count, room, g, y, weight):  # type: ignore[no-untyped-def]
    """One example: used in group g (y = 1) or not (0). `room` is for 4 numbers a feature."""
    u = 1 + REGION[g]
    z = reals[BASE + g]
    # Whole vectors: what is left over would be done one by one.
    padded = -(-count // VECTOR) * VECTOR
    v, u_of = room[:padded], room[padded : 2 * padded]
    v_squares, u_squares = room[2 * padded : 3 * padded], room[3 * padded : 4 * padded]
    for k in range(count, padded):
        v[k], u_of[k], v_squares[k], u_squares[k] = 0.0, 0.0, 1.0, 1.0
    for k in range(count):
        row = WEIGHTS + ids[k] * ROW
        v[k] = reals[row]
        u_of[k] = reals[row + u]
        v_squares[k] = reals[row + SQUARES]
        u_squares[k] = reals[row + SQUARES + u]
        z += v[k] + u_of[k]
    slope = weight * (sigmoid(z) - y)
    at = reals[BASE + g]
    reals[BASE_SQUARES + g] += slope * slope
    reals[BASE + g] = at - params[STEP_BASE] * slope / square_root(reals[BASE_SQUARES + g])
    reals[SEEN + g] += weight
    step(v, v_squares, params[STEP_FEATURE], slope, SHRINK * weight)
    step(u_of, u_squares, params[STEP_REGION], slope, SHRINK * weight)
    for k in range(count):
        row = WEIGHTS + ids[k] * ROW
        reals[row] = v[k]
        reals[row + u] = u_of[k]
        reals[row + SQUARES] = v_squares[k]
        reals[row + SQUARES + u] = u_squares[k]


@kernel(types.void(REALS, IDS, types.int64, REALS), error_model="numpy")
def predict_additive(reals, ids, count, hazard):  # type: ignore[no-untyped-def]
    """Write P(used in g | not before) for each group to ``hazard[:GROUPS]``; what is behind is room."""
    regions = hazard[GROUPS : GROUPS + REGIONS]
    for region in range(REGIONS):
        regions[region] = 0.0
    for k in range(count):
        row = WEIGHTS + ids[k] * ROW
        v = reals[row]
        for region in range(REGIONS):
            regions[region] += v + reals[row + 1 + region]
    before = 0.0
    for g in range(GROUPS):
        base = reals[BASE + g]
        if g > 0:
            seen = reals[SEEN + g]
            base = (seen * base + PRIOR * (before - FALL)) / (seen + PRIOR)
        before = base
        hazard[g] = sigmoid(base + regions[REGION[g]])


@kernel(types.boolean(STATE, REALS, types.int64))
def predict(state, reals, place):  # type: ignore[no-untyped-def]
    """Write the hazards of the segment at a place to `state.hazard`; return whether group 0 still lacks evidence."""
    head = state.head[0]
    if head.model == TABLE:
        predict_table(reals, state.levels, place, state.hazard)
        return reals[SEEN_IN_GROUP_0] < PRIOR
    ids = state.rows[place]
    count = features_of(state.levels, place, head.features, ids)
    state.segments[place].features = count
    predict_additive(reals, ids, count, state.hazard)
    return reals[SEEN] < PRIOR


@kernel(types.void(STATE, REALS, REALS, types.float64))
def learn(state, reals, params, now):  # type: ignore[no-untyped-def]
    """Learn from every segment that has passed the end of a group since the last time."""
    head = state.head[0]
    segments = state.segments
    size = len(segments)
    made = head.segments
    if head.model == TABLE and head.requests % HALVING == HALVING - 1:
        halve(reals)
    for g in range(GROUPS):
        number = max(state.pointers[g], made - size)
        place = number % size
        while number < made:
            segment = segments[place]
            if segment.time + GROUP_ENDS[g] > now:
                break
            number += 1
            this = place
            place = place + 1 if place + 1 < size else 0
            used = segment.used
            if used == CENSORED or used < g:
                continue
            y = 1.0 if used == g else 0.0
            if head.model == TABLE:
                learn_table(reals, state.levels, this, g, y, segment.weight)
                continue
            count = np.int64(segment.features)
            learn_additive(reals, params, state.rows[this], count, state.room, g, y, segment.weight)
        state.pointers[g] = number
