"""Reuse of blocks in an infinite cache: by token type, place in the prompt and count, within and across sessions.

A block is matched when it is in the leading run of a prompt's matchable blocks that are cached already. A match is
within a session when the last request that had the block is of the same session, else across.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.vocabulary import NUM_TOKEN_TYPES
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

Longs = npt.NDArray[np.int64]

#: Bins of the offset and of the reuse count: 0, 1, 2 to 3, 4 to 7, …
NUM_BINS = 24
_INT, _LONG, _BYTES = types.int32[::1], types.int64[::1], types.uint8[::1]
_TABLE = types.int64[:, ::1]


@dataclass(frozen=True)
class Reuse:
    """Counts; T token types, B bins (see `bin_labels`).

    blocks: (T,) distinct blocks, of prompts and replies. reused: (T,) of these, matched at least once.
    reused_by: (2, T) of these, matched at least once within and across sessions; a block may be in both.
    accesses: (T,) matchable blocks of prompts. hits: (2, T) of these, matched, within and across sessions.
    offset_accesses, offset_hits: (B,) the same by the block's index in its prompt.
    reuse_counts: (B,) distinct blocks by how often they are matched.
    replies, replies_reused: distinct blocks that a reply completed first, and those matched later.
    """

    blocks: Longs
    reused: Longs
    reused_by: Longs
    accesses: Longs
    hits: Longs
    offset_accesses: Longs
    offset_hits: Longs
    reuse_counts: Longs
    replies: int
    replies_reused: int


def bin_labels() -> list[str]:
    """Return the names of the bins."""
    return ["0", "1", *(f"{2**b:,} to {2 ** (b + 1) - 1:,}" for b in range(1, NUM_BINS - 1))]


def bin_starts() -> list[int]:
    """Return the lowest number of each bin."""
    return [0, *(2**b for b in range(NUM_BINS - 1))]


@compiled(types.int64(types.int64), inline="always")
def _bin(value):  # type: ignore[no-untyped-def]
    found = 0
    while value > 0 and found < NUM_BINS - 1:
        value >>= 1
        found += 1
    return found


@compiled(
    types.void(
        _INT, _LONG, _INT, _LONG, _INT, _INT, _BYTES, types.int64, _INT, _INT, _BYTES, _LONG, _TABLE, _LONG, _LONG
    )
)
def _match(  # type: ignore[no-untyped-def]
    prompt_tokens,
    prompt_start,
    prompt_blocks,
    generated_start,
    generated_blocks,
    session,
    token_type,
    block_size,
    latest,  # per block: session of the last request that had it; -1: none has
    count,  # per block: matches
    how,  # per block, bits: 1 matched within a session, 2 across, 4 completed first by a reply
    accesses,
    hits,
    offset_accesses,
    offset_hits,
):
    for r in range(len(prompt_tokens)):
        matchable = (prompt_tokens[r] - 1) // block_size
        start = prompt_start[r]
        leading = True
        for i in range(matchable):
            block = prompt_blocks[start + i]
            kind = token_type[block]
            place = _bin(i)
            accesses[kind] += 1
            offset_accesses[place] += 1
            leading = leading and latest[block] >= 0
            if leading:
                across = 0 if latest[block] == session[r] else 1
                hits[across, kind] += 1
                offset_hits[place] += 1
                count[block] += 1
                how[block] |= 1 + across
        for i in range(start, prompt_start[r + 1]):
            latest[prompt_blocks[i]] = session[r]
        for i in range(generated_start[r], generated_start[r + 1]):
            block = generated_blocks[i]
            if latest[block] < 0:
                how[block] |= 4
            latest[block] = session[r]


def measure(trace: Trace, sessions: Sessions) -> Reuse:
    """Count the matches of a trace in an infinite cache."""
    identities = trace.num_identities
    latest, count = np.full(identities, -1, np.int32), np.zeros(identities, np.int32)
    how = np.zeros(identities, np.uint8)
    accesses = np.zeros(NUM_TOKEN_TYPES, np.int64)
    hits = np.zeros((2, NUM_TOKEN_TYPES), np.int64)
    offset_accesses, offset_hits = np.zeros(NUM_BINS, np.int64), np.zeros(NUM_BINS, np.int64)
    _match(
        np.ascontiguousarray(trace.prompt_tokens),
        np.ascontiguousarray(trace.prompt_start),
        np.ascontiguousarray(trace.prompt_blocks),
        np.ascontiguousarray(trace.generated_start),
        np.ascontiguousarray(trace.generated_blocks),
        np.ascontiguousarray(sessions.session),
        np.ascontiguousarray(trace.token_type),
        trace.block_size,
        latest,
        count,
        how,
        accesses,
        hits,
        offset_accesses,
        offset_hits,
    )
    present = latest >= 0

    def by_type(mask: npt.NDArray[np.bool_]) -> Longs:
        return np.bincount(trace.token_type[mask & present], minlength=NUM_TOKEN_TYPES).astype(np.int64)

    bins = np.frexp(count[present].astype(np.float64))[1].clip(0, NUM_BINS - 1)
    reply = (how & 4) != 0
    return Reuse(
        blocks=by_type(present),
        reused=by_type(count > 0),
        reused_by=np.stack([by_type((how & 1) != 0), by_type((how & 2) != 0)]),
        accesses=accesses,
        hits=hits,
        offset_accesses=offset_accesses,
        offset_hits=offset_hits,
        reuse_counts=np.bincount(bins, minlength=NUM_BINS).astype(np.int64),
        replies=int(np.count_nonzero(reply)),
        replies_reused=int(np.count_nonzero(reply & (count > 0))),
    )
