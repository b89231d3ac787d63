"""What is known of a segment when its request is released, as categories.

A *level* is a small number, stored with the segment (`LEVELS` bytes); a *feature* is a level or a pair of levels, and
has a row of learned numbers for each of its values. `FEATURES` is the table of both.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from saecache_rl.cache.policies.hazard.layout import IDS, LEVEL_ROWS
from saecache_rl.compiled import kernel

# Levels. Of the block that is the segment's deepest:
LINEAGES = 0  # 1, 2, 3-4, 5-16, 17-64, 65+ lineages have had it
COUNT = 1  # accesses
INTERVAL = 2  # seconds since the access before
MEAN_INTERVAL = 3  # exponential average of their logarithm
PLACE = 4  # bit 0: seen for the first time; bit 1: the last of its request
OFFSET = 5  # in the chain
DISTANCE = 6  # blocks to the end of the chain
SIZE = 7  # blocks of the segment
TYPE = 8  # token type
# Of its request, and 0 where more than two lineages have had the block:
TURN = 9
FINISH = 10  # the reply ended for a tool, x the type of the prompt's last block
NEW = 11  # blocks seen for the first time
LENGTH = 12  # blocks
MATCHED = 13  # part of the prompt that was known
GAP = 14  # seconds since the request before of its lineage
MEAN_GAP = 15
GAP_BEFORE = 16
OUTPUT = 17  # tokens
SINCE = 18  # seconds since its lineage began
# And of the block again:
GENERATED = 19  # made by decoding
FORESIGHT = 20  # what an oracle adds, 0: nothing

#: Values of each level.
SIZES = (6, 13, 12, 12, 4, 13, 13, 13, 7, 9, 15, 14, 14, 8, 13, 13, 13, 14, 13, 2, 64)
#: Features: a level, or two whose values are crossed.
FEATURES: dict[str, tuple[int, int]] = {
    "lineages": (LINEAGES, -1),
    "count": (COUNT, -1),
    "lineages_count": (LINEAGES, COUNT),
    "interval": (INTERVAL, -1),
    "mean_interval": (MEAN_INTERVAL, -1),
    "place": (PLACE, -1),
    "offset": (OFFSET, -1),
    "distance": (DISTANCE, -1),
    "size": (SIZE, -1),
    "type": (TYPE, -1),
    "turn": (TURN, -1),
    "finish": (FINISH, -1),
    "new": (NEW, -1),
    "length": (LENGTH, -1),
    "matched": (MATCHED, -1),
    "gap": (GAP, -1),
    "mean_gap": (MEAN_GAP, -1),
    "gap_before": (GAP_BEFORE, -1),
    "output": (OUTPUT, -1),
    "turn_new": (TURN, NEW),
    "finish_gap": (FINISH, GAP),
    "turn_gap": (TURN, GAP),
    "since": (SINCE, -1),
    "generated": (GENERATED, -1),
    "foresight": (FORESIGHT, -1),
}
NAMES = tuple(FEATURES)
#: The twelve that do almost as well.
TWELVE = (
    "lineages_count",
    "turn_new",
    "finish_gap",
    "turn_gap",
    "mean_interval",
    "interval",
    "mean_gap",
    "gap_before",
    "output",
    "matched",
    "length",
    "offset",
    "generated",
    "foresight",
)
#: The only two whose value 0 has no row: nothing is generated, nothing foreseen.
OPTIONAL = len(NAMES) - 2

# Of each feature: its levels, the second's number of values, its first row. Arrays, which compiled code reads in place;
# a tuple would be copied at each call.
FIRST = np.array([a for a, _ in FEATURES.values()], np.int64)
SECOND = np.array([b for _, b in FEATURES.values()], np.int64)
WIDTH = np.array([1 if b < 0 else SIZES[b] for _, b in FEATURES.values()], np.int64)
_VALUES = np.array([SIZES[a] for a, _ in FEATURES.values()], np.int64) * WIDTH
START = np.concatenate([[0], np.cumsum(_VALUES)[:-1]]).astype(np.int64)
#: Rows of learned numbers.
ROWS = int(_VALUES.sum())


@kernel(types.int64(LEVEL_ROWS, types.int64, types.int64, IDS))
def features_of(levels, row, mask, ids):  # type: ignore[no-untyped-def]
    """Write the rows of the features in `mask` of one segment to `ids`; return how many."""
    count = 0
    for f in range(len(FIRST)):
        if (mask >> f) & 1 == 0:
            continue
        value = np.int64(levels[row, FIRST[f]])
        if f >= OPTIONAL and value == 0:
            continue
        if SECOND[f] >= 0:
            value = value * WIDTH[f] + levels[row, SECOND[f]]
        ids[count] = START[f] + value
        count += 1
    return count


def mask_of(names: tuple[str, ...]) -> int:
    """A bit for each of the named features."""
    return sum(1 << NAMES.index(name) for name in names)


@kernel(types.int64(types.int64), forceinline=True)
def size_level(value):  # type: ignore[no-untyped-def]
    """0 for 0, else floor(log2 value) + 1, at most 12."""
    level = 0
    while value > 0 and level < 12:
        value >>= 1
        level += 1
    return level


@kernel(types.int64(types.float64), forceinline=True)
def log_seconds_level(log_seconds):  # type: ignore[no-untyped-def]
    """0 for none (nan), else 1 + floor(1.25 ln seconds), from 1 to 11."""
    if math.isnan(log_seconds):
        return 0
    return 1 + min(max(math.floor(1.25 * max(log_seconds, -1.0)), 0), 10)


@kernel(types.float64(types.float64), forceinline=True)
def log_of(seconds):  # type: ignore[no-untyped-def]
    """ln of at least half a second; nan stays."""
    if math.isnan(seconds):
        return math.nan
    return math.log(max(seconds, 0.5))


@kernel(types.int64(types.int64), forceinline=True)
def lineages_level(lineages):  # type: ignore[no-untyped-def]
    """0 to 5 for 1, 2, 3-4, 5-16, 17-64, 65+."""
    if lineages <= 2:
        return max(lineages, 1) - 1
    if lineages <= 4:
        return 2
    if lineages <= 16:
        return 3
    return 4 if lineages <= 64 else 5


@kernel(types.int64(types.int64), forceinline=True)
def turn_level(turn):  # type: ignore[no-untyped-def]
    """1 to 8 for 0, 1, 2, 3, 4-5, 6-8, 9-15, 16+."""
    if turn <= 3:
        return 1 + turn
    if turn <= 5:
        return 5
    if turn <= 8:
        return 6
    return 7 if turn <= 15 else 8


@kernel(types.int64(types.float64), forceinline=True)
def matched_level(part):  # type: ignore[no-untyped-def]
    """1 to 7 by the edges 0.01, 0.1, 0.3, 0.6, 0.9, 0.97."""
    return (
        1
        + int(part >= 0.01)
        + int(part >= 0.1)
        + int(part >= 0.3)
        + int(part >= 0.6)
        + int(part >= 0.9)
        + int(part >= 0.97)
    )
