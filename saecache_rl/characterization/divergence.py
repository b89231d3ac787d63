"""Where the prompts of one session part: a history that is rewritten can't be served from any cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.vocabulary import NUM_TOKEN_TYPES
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

_INT, _LONG, _BYTES = types.int32[::1], types.int64[::1], types.uint8[::1]

#: A prompt that shares less than this part of the one before diverges at its beginning.
BEGINNING = 0.05


class Divergence(NamedTuple):
    """Further requests of sessions whose prompt before has at least one full block.

    followers: how many. extending: hold all full blocks of the prompt before.
    beginning: share less than `BEGINNING` of them. shared: (N,) part that each of the others shares, 0 to 1.
    kinds: (T,) of those that part, by the type of the first block that differs.
    lost_blocks: full blocks of the prompts before that the next one does not share.
    """

    followers: int
    extending: int
    beginning: int
    shared: npt.NDArray[np.float64]
    kinds: npt.NDArray[np.int64]
    lost_blocks: int


@compiled(types.void(_INT, _LONG, _INT, _INT, _INT))
def _common(session, prompt_start, prompt_blocks, previous, common):  # type: ignore[no-untyped-def]
    """Fill in the number of leading blocks that each request shares with the one before in its session; -1: none is."""
    for r in range(len(session)):
        p = previous[session[r]]
        previous[session[r]] = r
        common[r] = -1
        if p >= 0:
            length = min(prompt_start[p + 1] - prompt_start[p], prompt_start[r + 1] - prompt_start[r])
            n = 0
            while n < length and prompt_blocks[prompt_start[p] + n] == prompt_blocks[prompt_start[r] + n]:
                n += 1
            common[r] = n


def measure(trace: Trace, sessions: Sessions) -> Divergence:
    """Compare each request with the one before in its session."""
    requests = trace.num_requests
    common = np.empty(requests, np.int32)
    _common(
        np.ascontiguousarray(sessions.session),
        np.ascontiguousarray(trace.prompt_start),
        np.ascontiguousarray(trace.prompt_blocks),
        np.full(requests, -1, np.int32),
        common,
    )
    order = np.argsort(sessions.session, kind="stable")
    previous = np.zeros(requests, np.int64)
    previous[order[1:]] = order[:-1]
    full = np.diff(trace.prompt_start)
    compared = np.flatnonzero((common >= 0) & (full[previous] > 0))
    length = full[previous[compared]]
    shared = common[compared] / length
    parts = compared[common[compared] < length]
    with_block = parts[common[parts] < full[parts]]
    first = trace.prompt_blocks[trace.prompt_start[with_block] + common[with_block]]
    return Divergence(
        followers=len(compared),
        extending=int(np.count_nonzero(common[compared] == length)),
        beginning=int(np.count_nonzero(shared < BEGINNING)),
        shared=shared[shared < 1],
        kinds=np.bincount(trace.token_type[first], minlength=NUM_TOKEN_TYPES).astype(np.int64),
        lost_blocks=int((length - common[compared]).sum()),
    )
