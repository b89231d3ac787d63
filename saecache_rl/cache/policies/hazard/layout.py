"""The state of the policy, as records laid out in `cache.ints`, and the learner's numbers in `cache.reals`.

`cache.ints` begins with a word for the place and a word for the length of each array of `State`; `state_at` makes the
arrays of it. All of it is of a fixed size, a multiple of the number of blocks N.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.layout import CACHE
from saecache_rl.compiled import kernel
from saecache_rl.handles import address_of, array_at

#: Age bins: bin 0 is [0, 0.5 s), bin b is [0.5 e^((b-1)/3), 0.5 e^(b/3)).
BINS = 36
#: Groups of two bins, each with a hazard of its own.
GROUPS = 18
#: Classes of candidates; the second only with a guard.
BY_HAZARD, BY_RELEASE = 0, 1
#: Features of a segment as categories; `features` names them.
LEVELS = 21
#: Room for the features of a segment.
FEATURES_AT_MOST = 32
#: Prefetch so many blocks ahead.
AHEAD = 8
#: The state's arrays begin at multiples of so many bytes, a line of the processor's caches, as an entry is one.
LINE = 64
#: Blocks in the list by last access, as a multiple of the number of blocks: all of the recent part of it, and of the
#: rest only those in which a segment ends.
GHOSTS = 10
RECENT = 4
#: Segments that are remembered, likewise.
SEGMENTS = 4

#: One known block, resident or not: 64 bytes.
ENTRY = np.dtype(
    [
        ("fingerprint", "i8"),
        ("time", "f8"),  # seconds of the last access
        ("segment", "i8"),  # number of the segment of its last access, -1: none
        ("log_interval", "f4"),  # exponential average of ln of the seconds between its accesses; nan: none yet
        ("lineage", "i4"),  # of its last access
        ("copies", "i4"),  # slots of the pool that hold it
        ("newer", "i4"),  # list by last access, the deepest of a request the least recent; -1: the end
        ("older", "i4"),
        ("parent", "i4"),  # entry of the block before it in its chain, -1: none; only kept for the shadow
        ("children", "i4"),  # how many of its children the shadow holds
        ("leaf", "i4"),  # place among the shadow's leaves, -1: none
        ("curve", "i4"),  # its index curve, -1: none; held while the pool or the shadow holds the block
        ("count", "u2"),  # accesses, at most 65,535
        ("lineages", "u1"),  # changes of lineage + 1, at most 255
        ("flags", "u1"),  # the bits below
    ],
    align=True,
)
LISTED = 1  # in the list by last access
IN_LRU = 2  # resident in the shadow LRU
IN_SHADOW = 4  # resident in the shadow of this policy
RECENTLY = 8  # in the recent part of the list
DEEPEST = 16  # the last of the segment of its last access

#: One segment; with its levels 64 bytes.
SEGMENT = np.dtype(
    [
        ("number", "i8"),  # segments are numbered in order of release; number n stands at n modulo their count
        ("time", "f8"),  # seconds of the access
        ("entry", "i4"),  # entry of its deepest block
        ("length", "i4"),  # blocks of the request's prompt
        ("weight", "f4"),  # in learning
        ("since", "f4"),  # seconds since the lineage began
        ("log_gap", "f4"),  # exponential average of ln gap along the lineage; nan: none
        ("turn", "u2"),
        ("used", "u1"),  # group of ages in which it was used again, or one of the codes below
        ("features", "u1"),  # how many it has
    ],
    align=True,
)
UNUSED = 255  # not yet
CENSORED = 254  # forgotten before it was used
TOO_LATE = GROUPS  # used later than the last bin

#: The policy's single numbers; an array of one.
HEAD = np.dtype(
    [
        ("free_entry", "i8"),  # first of the list of free entries (by `older`), -1: none
        ("newest", "i8"),
        ("oldest", "i8"),
        ("listed", "i8"),
        ("lru_last", "i8"),  # the least recent entry of the shadow LRU, -1: none
        ("lru_held", "i8"),
        ("recent_last", "i8"),  # the least recent entry of the list's recent part, -1: none
        ("recent", "i8"),  # entries of that part
        ("free_curves", "i8"),  # on the stack `curve_free`
        ("segments", "i8"),  # made so far
        ("lineages", "i8"),
        ("requests", "i8"),
        ("mean_length", "f8"),  # mean blocks of a request
        ("shadow_held", "i8"),
        ("leaves", "i8"),  # of the shadow
        ("random", "u8"),  # of the shadow's sampler
        ("floors_until", "f8"),  # seconds until which the leaves' floors hold
        ("span", "f8"),  # seconds for which floors are made
        ("looked", "i8"),  # leaves scored since the floors were made
        ("advantage", "f8"),  # decayed hits of the shadow less those of the shadow LRU, D in the docs
        ("asked", "f8"),  # decayed blocks asked for, B
        ("noise", "f8"),  # decayed squares of the steps of D, Q
        ("given", "f8"),  # decayed hits more than the shadow LRU's while the index was in force, G
        ("falls", "f8"),  # decayed number of times that the index lost its budget, F
        ("regret", "f8"),  # decayed blocks that were known and that the shadow LRU did not hold, R
        ("misses", "f8"),  # decayed squares of the steps of R, S
        ("by_hazard", "i8"),  # 1: the order in force is the hazards'; 0: LRU's
        ("switches", "i8"),
        ("model", "i8"),  # which options are set; see `policy`
        ("index", "i8"),
        ("features", "i8"),  # a bit a feature
        ("guarded", "i8"),
        ("foresight", "i8"),
    ],
    align=True,
)

#: One slot of the pool.
SLOT = np.dtype([("release", "i8"), ("entry", "i4")], align=True)


class State(NamedTuple):
    """The arrays of the policy. E entries, S segments, N slots, K curves."""

    head: Any  # (1,) HEAD
    entries: Any  # (E,) ENTRY
    table: Any  # int32, hash table of entries, -1: empty
    segments: Any  # (S,) SEGMENT
    levels: Any  # (S, LEVELS) uint8
    pointers: Any  # (GROUPS,) int64, the first segment that a group has not learned from
    slots: Any  # (N,) SLOT
    curves: Any  # (K, BINS) float32
    holders: Any  # (K,) int32, entries that hold the curve
    curve_free: Any  # (K,) int32, a stack
    chain: Any  # (N,) int32, entries of the request that is being released
    rows: Any  # (S, FEATURES_AT_MOST) uint16, rows of the features of each segment
    hazard: Any  # (GROUPS + 2 BINS,) float64, of one segment, and room to make its curve
    room: Any  # (4 x FEATURES_AT_MOST,) float64, for the learner
    leaves: Any  # (N,) int32, the shadow's leaves: a heap of entries by floor
    scores: Any  # (N,) float64, their floors


_HEAD, _ENTRY, _SEGMENT, _SLOT = (numba.from_dtype(d) for d in (HEAD, ENTRY, SEGMENT, SLOT))
ENTRIES = types.Array(_ENTRY, 1, "C")
HEADS = types.Array(_HEAD, 1, "C")
INTS, LONGS, REALS = types.int32[::1], types.int64[::1], types.float64[::1]
CURVES, LEVEL_ROWS = types.float32[:, ::1], types.uint8[:, ::1]
IDS, ID_ROWS = types.uint16[::1], types.uint16[:, ::1]
SEGMENT_ROWS = types.Array(_SEGMENT, 1, "C")
SLOT_ROWS = types.Array(_SLOT, 1, "C")

#: Of each array of `State`: its record, its columns, its numba type.
_KINDS: dict[str, tuple[np.dtype[Any], int, Any]] = {
    "head": (HEAD, 0, HEADS),
    "entries": (ENTRY, 0, ENTRIES),
    "table": (np.dtype("i4"), 0, INTS),
    "segments": (SEGMENT, 0, SEGMENT_ROWS),
    "levels": (np.dtype("u1"), LEVELS, LEVEL_ROWS),
    "pointers": (np.dtype("i8"), 0, LONGS),
    "slots": (SLOT, 0, SLOT_ROWS),
    "curves": (np.dtype("f4"), BINS, CURVES),
    "holders": (np.dtype("i4"), 0, INTS),
    "curve_free": (np.dtype("i4"), 0, INTS),
    "chain": (np.dtype("i4"), 0, INTS),
    "rows": (np.dtype("u2"), FEATURES_AT_MOST, ID_ROWS),
    "hazard": (np.dtype("f8"), 0, REALS),
    "room": (np.dtype("f8"), 0, REALS),
    "leaves": (np.dtype("i4"), 0, INTS),
    "scores": (np.dtype("f8"), 0, REALS),
}
STATE = types.NamedTuple(tuple(kind[2] for kind in _KINDS.values()), State)

_head, _entries, _segments, _slots = array_at(HEADS), array_at(ENTRIES), array_at(SEGMENT_ROWS), array_at(SLOT_ROWS)
_ints, _longs, _reals = array_at(INTS), array_at(LONGS), array_at(REALS)
_levels, _curves = array_at(LEVEL_ROWS, LEVELS), array_at(CURVES, BINS)
_rows = array_at(ID_ROWS, FEATURES_AT_MOST)


@kernel(STATE(CACHE), forceinline=True)
def state_at(cache):  # type: ignore[no-untyped-def]
    """The policy's arrays in `cache.ints`."""
    w = cache.ints
    at = address_of(w)
    return State(
        _head(at + w[0], w[1]),
        _entries(at + w[2], w[3]),
        _ints(at + w[4], w[5]),
        _segments(at + w[6], w[7]),
        _levels(at + w[8], w[9]),
        _longs(at + w[10], w[11]),
        _slots(at + w[12], w[13]),
        _curves(at + w[14], w[15]),
        _ints(at + w[16], w[17]),
        _ints(at + w[18], w[19]),
        _ints(at + w[20], w[21]),
        _rows(at + w[22], w[23]),
        _reals(at + w[24], w[25]),
        _reals(at + w[26], w[27]),
        _ints(at + w[28], w[29]),
        _reals(at + w[30], w[31]),
    )


def view(ints: npt.NDArray[np.int64]) -> State:
    """The policy's arrays in `cache.ints`, for Python: tests and plots."""
    arrays = []
    for place, (dtype, columns, _) in enumerate(_KINDS.values()):
        at, rows = int(ints[2 * place]), int(ints[2 * place + 1])
        raw = ints.view(np.uint8)[at : at + rows * max(columns, 1) * dtype.itemsize]
        array: npt.NDArray[Any] = raw.view(dtype)
        arrays.append(array.reshape(rows, columns) if columns else array)
    return State(*arrays)


def _in_lines(size: int) -> int:
    """A number of bytes, rounded up to whole lines."""
    return -(-size // LINE) * LINE


def allocate(num_blocks: int, guarded: bool) -> npt.NDArray[np.int64]:
    """Lay out an empty state for a pool of `num_blocks`; with room for the shadows where it is `guarded`."""
    holders = 2 if guarded else 1
    entries = (GHOSTS + holders) * num_blocks + 1
    curves = holders * num_blocks + 1
    segments = max(SEGMENTS * num_blocks, 64)
    rows = {
        "head": 1,
        "entries": entries,
        "table": 1 << (2 * entries - 1).bit_length(),
        "segments": segments,
        "levels": segments,
        "pointers": GROUPS,
        "slots": num_blocks,
        "curves": curves,
        "holders": curves,
        "curve_free": curves,
        "chain": num_blocks,
        "rows": segments,
        "hazard": GROUPS + 2 * BINS,
        "room": 4 * FEATURES_AT_MOST,
        "leaves": num_blocks if guarded else 0,
        "scores": num_blocks if guarded else 0,
    }
    size = _in_lines(16 * len(_KINDS))
    table = []
    for name, (dtype, columns, _) in _KINDS.items():
        table += [size, rows[name]]
        size += _in_lines(rows[name] * max(columns, 1) * dtype.itemsize)
    ints = np.zeros((size + LINE) // 8, np.int64)
    ints = ints[-ints.ctypes.data % LINE // 8 :][: size // 8]
    ints[: len(table)] = table
    state = view(ints)
    head = state.head
    for field in ("newest", "oldest", "lru_last", "recent_last"):
        head[field] = -1
    head["floors_until"] = -1.0
    head["free_curves"] = curves
    state.curve_free[:] = np.arange(curves - 1, -1, -1)
    state.entries["older"] = np.arange(1, entries + 1)
    state.entries["older"][-1] = -1
    state.entries["fingerprint"] = -1
    state.table[:] = -1
    state.segments["number"] = -1
    state.slots["entry"] = -1
    return ints
