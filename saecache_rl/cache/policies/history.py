"""What a policy remembers of evicted blocks, in lists of its own: ARC's, LeCaR's and S3-FIFO's ghosts.

The pool's ghosts (`saecache_rl.cache.ghosts`) are one ring; these are lists in order of eviction that share a fixed
number of records and a hash table, all in `cache.ints`. A record is always in exactly one list: FREE, WANTED (missed by
the request that is being served, which will insert the block anew) or one of the policy's two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.fingerprints import enter, look_up, table_size, take_out
from saecache_rl.cache.layout import CACHE, INT
from saecache_rl.compiled import kernel
from saecache_rl.handles import address_of, array_at

FREE, WANTED, FIRST, SECOND = 0, 1, 2, 3
NUM_LISTS = 4

#: One remembered block, 32 bytes.
RECORD = np.dtype(
    [
        ("fingerprint", "i8"),
        ("time", "i8"),  # the policy's clock at the eviction
        ("count", "i4"),  # the policy's frequency of the block
        ("older", "i4"),  # -1: the end of its list
        ("newer", "i4"),
        ("list", "i4"),
    ],
    align=True,
)
LIST = np.dtype([("newest", "i4"), ("oldest", "i4"), ("size", "i8")], align=True)


class History(NamedTuple):
    """The arrays; R records."""

    lists: Any  # (NUM_LISTS,) LIST
    records: Any  # (R,) RECORD
    table: Any  # int32


_RECORDS = types.Array(numba.from_dtype(RECORD), 1, "C")
_LISTS = types.Array(numba.from_dtype(LIST), 1, "C")
HISTORY = types.NamedTuple((_LISTS, _RECORDS, types.int32[::1]), History)
_lists, _records, _ints = array_at(_LISTS), array_at(_RECORDS), array_at(types.int32[::1])
_LIST_BYTES, _RECORD_BYTES = NUM_LISTS * LIST.itemsize, RECORD.itemsize


def empty_history(records: int) -> npt.NDArray[np.int64]:
    """Words of a history that remembers nothing, to stand somewhere in `cache.ints`: R, the table's length, arrays."""
    lists, rows = np.zeros(NUM_LISTS, LIST), np.zeros(records, RECORD)
    lists["newest"], lists["oldest"] = -1, -1
    lists[FREE] = (0, records - 1, records)
    rows["fingerprint"] = -1
    rows["newer"], rows["older"] = np.arange(-1, records - 1), np.arange(1, records + 1)
    rows["older"][-1] = -1
    table = np.full(max(table_size(records), 2), -1, np.int32)
    sizes = np.array([records, len(table)], np.int64)
    return np.concatenate([sizes, *(array.view(np.int64) for array in (lists, rows, table))])


@kernel(HISTORY(CACHE, INT), forceinline=True)
def history_at(cache, start):  # type: ignore[no-untyped-def]
    """The history whose words begin at ``cache.ints[start]``."""
    records = cache.ints[start]
    at = address_of(cache.ints) + 8 * (start + 2)
    return History(
        _lists(at, NUM_LISTS),
        _records(at + _LIST_BYTES, records),
        _ints(at + _LIST_BYTES + records * _RECORD_BYTES, cache.ints[start + 1]),
    )


@kernel(INT(HISTORY, INT), forceinline=True)
def recall(history, fingerprint):  # type: ignore[no-untyped-def]
    """Number of the record of a fingerprint, -1 if it is not remembered."""
    return look_up(history.table, history.records, fingerprint)


@kernel(types.void(HISTORY, INT, INT))
def move(history, number, target):  # type: ignore[no-untyped-def]
    """Make a record the newest of a list."""
    records = history.records
    record = records[number]
    source = history.lists[record.list]
    if record.newer >= 0:
        records[record.newer].older = record.older
    else:
        source.newest = record.older
    if record.older >= 0:
        records[record.older].newer = record.newer
    else:
        source.oldest = record.newer
    source.size -= 1
    to = history.lists[target]
    record.list = target
    record.newer = -1
    record.older = to.newest
    if to.newest >= 0:
        records[to.newest].newer = number
    else:
        to.oldest = number
    to.newest = number
    to.size += 1


@kernel(types.void(HISTORY, INT))
def forget(history, number):  # type: ignore[no-untyped-def]
    """Give a record back."""
    take_out(history.table, history.records, number)
    history.records[number].fingerprint = -1
    move(history, number, FREE)


@kernel(types.void(HISTORY, INT, INT))
def trim(history, target, size):  # type: ignore[no-untyped-def]
    """Forget the oldest of a list until it has at most `size`."""
    while history.lists[target].size > max(size, 0):
        forget(history, history.lists[target].oldest)


@kernel(types.void(HISTORY, INT, INT))
def want(history, number, most):  # type: ignore[no-untyped-def]
    """The block of a record is missed, and will be inserted anew; at most so many are waited for."""
    move(history, number, WANTED)
    trim(history, WANTED, most)  # binds only live, where a request may end before its blocks are inserted


@kernel(INT(HISTORY, INT))
def claim(history, fingerprint):  # type: ignore[no-untyped-def]
    """A block was inserted: forget its record. Return the count there if it was waited for, else -1."""
    number = recall(history, fingerprint)
    if number < 0:
        return np.int64(-1)
    count = np.int64(history.records[number].count) if history.records[number].list == WANTED else np.int64(-1)
    forget(history, number)
    return count


@kernel(INT(HISTORY, INT, INT))
def note(history, fingerprint, target):  # type: ignore[no-untyped-def]
    """Remember a block as the newest of a list, whatever was remembered of it; return its record's number.

    Whoever notes keeps a record free, by `trim`.
    """
    known = look_up(history.table, history.records, fingerprint)
    if known >= 0:
        forget(history, known)
    number = np.int64(history.lists[FREE].newest)
    history.records[number].fingerprint = fingerprint
    enter(history.table, fingerprint, number)
    move(history, number, target)
    return number
