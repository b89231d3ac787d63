"""A hash table from fingerprints to the numbers of the records that hold them, of ghosts and of policies.

Linear probing; a removal moves followers back, so no tombstones pile up and the cost stays flat however long it runs.
The table is int32, a power of two in length and at least twice as long as there are records, -1 where empty. Records
have a field ``fingerprint``.
"""

from __future__ import annotations

import numpy as np

from saecache_rl.compiled import kernel


def table_size(records: int) -> int:
    """Length of the table for so many records."""
    return 1 << int(2 * records - 1).bit_length() if records else 0


@kernel(inline="always")
def home(fingerprint, mask):  # type: ignore[no-untyped-def]
    """Where a fingerprint belongs in the table; multiplicative hashing, Knuth TAOCP 3, 6.4."""
    return np.int64((np.uint64(fingerprint) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask


@kernel(forceinline=True)
def look_up(table, records, fingerprint):  # type: ignore[no-untyped-def]
    """Number of the record with a fingerprint, -1 if there is none."""
    if len(table) == 0:
        return np.int64(-1)
    mask = len(table) - 1
    place = home(fingerprint, mask)
    while table[place] >= 0:
        if records[table[place]].fingerprint == fingerprint:
            return np.int64(table[place])
        place = (place + 1) & mask
    return np.int64(-1)


@kernel(forceinline=True)
def enter(table, fingerprint, number):  # type: ignore[no-untyped-def]
    """Enter a record's number under its fingerprint, which has none."""
    mask = len(table) - 1
    place = home(fingerprint, mask)
    while table[place] >= 0:
        place = (place + 1) & mask
    table[place] = number


@kernel(forceinline=True)
def take_out(table, records, number):  # type: ignore[no-untyped-def]
    """Take a record's number out of the table."""
    mask = len(table) - 1
    place = home(records[number].fingerprint, mask)
    while table[place] != number:
        place = (place + 1) & mask
    hole = place
    table[hole] = -1
    place = (place + 1) & mask
    while table[place] >= 0:
        wanted = home(records[table[place]].fingerprint, mask)
        # A follower may fill the hole unless its home lies after the hole on the way to it.
        if ((place - wanted) & mask) >= ((place - hole) & mask):
            table[hole] = table[place]
            table[place] = -1
            hole = place
        place = (place + 1) & mask
