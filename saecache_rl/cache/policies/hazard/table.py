"""The simple variant of the learner: counts in a table of classes instead of an additive model.

A class is (bucket of lineages, the turn of a block that one lineage has had, else its mean interval, whether the reply
ended for a tool, bucket of new blocks). Whole cohorts are counted by class and age group, halved every so often; a
class is shrunk to its coarse class (the first two parts), and that to the age group before.
"""

from __future__ import annotations

import math

from numba import types

from saecache_rl.cache.policies.hazard import features as f
from saecache_rl.cache.policies.hazard.layout import GROUPS, LEVEL_ROWS, REALS
from saecache_rl.compiled import kernel

_PARTS = 12  # turns or mean intervals
_FINE = 8  # x ended for a tool x bucket of new blocks
_COARSE = f.SIZES[f.LINEAGES] * _PARTS

# Places in `cache.reals`: seen and used of each group, of coarse and of fine classes.
SEEN_IN_GROUP_0 = 0
COARSE = 1
FINE = COARSE + _COARSE * 2 * GROUPS
NUM_REALS = FINE + _COARSE * _FINE * 2 * GROUPS

#: Requests after which all counts are halved.
HALVING = 6000
#: Examples that a prior counts for.
PRIOR = 20.0
#: P(used in a group) where nothing is known, and the odds' factor from one age group to the next without evidence.
START = 0.15
FALL = math.exp(-0.6)


@kernel(types.int64(LEVEL_ROWS, types.int64), forceinline=True)
def class_of(levels, row):  # type: ignore[no-untyped-def]
    """Number of a segment's class; the coarse class is that over `_FINE`."""
    lineages = levels[row, f.LINEAGES]
    part = levels[row, f.TURN] if lineages == 0 else levels[row, f.MEAN_INTERVAL]
    finish = levels[row, f.FINISH]
    for_tool = 1 if finish > 7 else 0
    new = max(levels[row, f.NEW], 1) - 1
    bucket = 0 if new <= 2 else (1 if new <= 4 else (2 if new <= 6 else 3))
    return (lineages * _PARTS + part) * _FINE + for_tool * 4 + bucket


@kernel(types.void(REALS, LEVEL_ROWS, types.int64, types.int64, types.float64, types.float64))
def learn_table(reals, levels, row, g, y, weight):  # type: ignore[no-untyped-def]
    """One example: used in group g (y = 1) or not (0)."""
    c = class_of(levels, row)
    fine = FINE + (c * GROUPS + g) * 2
    coarse = COARSE + ((c // _FINE) * GROUPS + g) * 2
    reals[fine] += weight
    reals[fine + 1] += weight * y
    reals[coarse] += weight
    reals[coarse + 1] += weight * y
    if g == 0:
        reals[SEEN_IN_GROUP_0] += weight


@kernel(types.void(REALS, LEVEL_ROWS, types.int64, REALS))
def predict_table(reals, levels, row, hazard):  # type: ignore[no-untyped-def]
    """Write P(used in g | not before) for each group to `hazard`."""
    c = class_of(levels, row)
    prior = START
    for g in range(GROUPS):
        fine = FINE + (c * GROUPS + g) * 2
        coarse = COARSE + ((c // _FINE) * GROUPS + g) * 2
        p = (reals[coarse + 1] + PRIOR * prior) / (reals[coarse] + PRIOR)
        p = (reals[fine + 1] + PRIOR * p) / (reals[fine] + PRIOR)
        hazard[g] = p
        odds = FALL * p / max(1.0 - p, 1e-9)
        prior = odds / (1.0 + odds)


@kernel(types.void(REALS))
def halve(reals):  # type: ignore[no-untyped-def]
    """Forget half of what was counted."""
    for i in range(COARSE, len(reals)):
        reals[i] *= 0.5
