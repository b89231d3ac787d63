"""Sessions of a live engine by lineage, online and in bounded memory; the rule of `saecache_rl.workloads.sessions`.

What is remembered of a block, by fingerprint: which session alone has had it, and whose latest chain ends in it. Two
tables take turns: what is used moves to the current one, and when that is full the other, whose blocks have not been
used since, is forgotten. Sessions stand in a ring.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from saecache_rl.compiled import kernel
from saecache_rl.engines.vllm.nodes import Fingerprints

_LONG = types.int64[::1]

#: One remembered block.
SEEN = np.dtype(
    [
        ("fingerprint", "i8"),  # -1: empty
        ("toucher", "i4"),  # the only session that has had it; -1: none; -2: several have
        ("tail_of", "i4"),  # the session whose latest chain ends here, or -1
    ],
    align=True,
)
#: One session, at its number modulo the ring's length.
SESSION = np.dtype(
    [
        ("number", "i8"),  # -1: none
        ("arrival", "f8"),  # of its latest request, seconds
        ("prompt_tokens", "i8"),  # of its latest request
        ("turn", "i4"),  # of its latest request
        ("agentic", "u1"),
    ],
    align=True,
)


def _records(dtype: Any, dimensions: int = 1) -> Any:
    return types.Array(numba.from_dtype(dtype), dimensions, "C")


_SEEN, _SESSIONS = _records(SEEN, 2), _records(SESSION)
# numbers: which table is current, how many blocks each holds, the next session's number
CURRENT, COUNT, NEXT = 0, 1, 3
BY_LINEAGE, NEW = -1, -2


@kernel(types.int64(types.int64, types.int64))
def _home(fingerprint, mask):  # type: ignore[no-untyped-def]
    return (fingerprint >> 8) & mask


@kernel(types.int64(_SEEN, types.int64, types.int64))
def _place(seen, which, fingerprint):  # type: ignore[no-untyped-def]
    """Where a fingerprint is, or would be put, in one table."""
    mask = seen.shape[1] - 1
    place = _home(fingerprint, mask)
    while seen[which, place].fingerprint != -1 and seen[which, place].fingerprint != fingerprint:
        place = (place + 1) & mask
    return place


@kernel(types.int64(_SEEN, _LONG, types.int64))
def _remember(seen, numbers, fingerprint):  # type: ignore[no-untyped-def]
    """Place of a fingerprint in the current table, where it is put if it was not there."""
    current = numbers[CURRENT]
    place = _place(seen, current, fingerprint)
    entry = seen[current, place]
    if entry.fingerprint == -1:
        entry.fingerprint = fingerprint
        entry.toucher = -1
        entry.tail_of = -1
        numbers[COUNT + current] += 1
        before = seen[1 - current, _place(seen, 1 - current, fingerprint)]
        if before.fingerprint == fingerprint:
            entry.toucher = before.toucher
            entry.tail_of = before.tail_of
    return place


@kernel(types.void(_SEEN, _LONG, types.int64))
def _make_room(seen, numbers, wanted):  # type: ignore[no-untyped-def]
    """Change tables if the current one would be more than half full."""
    if numbers[COUNT + numbers[CURRENT]] + wanted <= seen.shape[1] // 2:
        return
    numbers[CURRENT] = 1 - numbers[CURRENT]
    numbers[COUNT + numbers[CURRENT]] = 0
    for place in range(seen.shape[1]):
        seen[numbers[CURRENT], place].fingerprint = -1


@kernel(types.void(_SEEN, _LONG, types.int64, _LONG))
def _end(seen, numbers, own, blocks):  # type: ignore[no-untyped-def]
    """Session `own` has these blocks, the last of which ends its request."""
    _make_room(seen, numbers, len(blocks))
    current = numbers[CURRENT]
    tail = -1
    for i in range(len(blocks)):
        tail = _remember(seen, numbers, blocks[i])
        entry = seen[current, tail]
        if entry.toucher != own:
            entry.toucher = own if entry.toucher == -1 else -2
    if tail >= 0:
        seen[current, tail].tail_of = own


@kernel(types.int64(_SEEN, _LONG, _SESSIONS, types.int64, _LONG, types.int64, _LONG))
def _begin(seen, numbers, sessions, hinted, prompt, prompt_tokens, places):  # type: ignore[no-untyped-def]
    """The session of a request that begins, whose prompt it then has: `hinted`, a NEW one, or BY_LINEAGE."""
    _make_room(seen, numbers, len(prompt))
    current = numbers[CURRENT]
    for i in range(len(prompt)):
        places[i] = _remember(seen, numbers, prompt[i])
    own = hinted
    if own == BY_LINEAGE:
        for i in range(len(prompt) - 1, -1, -1):
            entry = seen[current, places[i]]
            candidate = entry.tail_of
            if candidate >= 0 and entry.toucher == candidate:
                record = sessions[candidate % len(sessions)]
                # A prompt that is no longer than the session's latest does not extend it, whatever they share.
                if record.number == candidate and prompt_tokens > record.prompt_tokens:
                    own = np.int64(candidate)
                    entry.tail_of = -1
                break
    if own < 0:
        own = numbers[NEXT]
        numbers[NEXT] += 1
        sessions[own % len(sessions)].number = own
        sessions[own % len(sessions)].turn = -1
        sessions[own % len(sessions)].agentic = 0
    sessions[own % len(sessions)].prompt_tokens = prompt_tokens
    for i in range(len(prompt)):
        entry = seen[current, places[i]]
        if entry.toucher != own:
            entry.toucher = own if entry.toucher == -1 else -2
    return own


class Known(NamedTuple):
    """A request's place in its session.

    session: its number. turn: 0 for the first request. gap_seconds: since the previous request's arrival, nan at
    turn 0. was_agentic: whether the session had had tools before this request.
    """

    session: int
    turn: int
    gap_seconds: float
    was_agentic: bool


class LiveSessions:
    """Finds each request's session as it arrives.

    `begin` when a request is scheduled for the first time, `end` when it is over. Requests that are over before the
    next begins get the sessions that `lineage` finds in the trace of them.
    """

    def __init__(self, num_blocks: int) -> None:
        """Remember at least the 2 `num_blocks` latest blocks, at most twice as many, and as many sessions."""
        room = 1 << (max(2 * num_blocks, 4096) - 1).bit_length()
        self._seen = np.zeros((2, 2 * room), SEEN)
        self._seen["fingerprint"] = -1
        self._sessions = np.zeros(room, SESSION)
        self._sessions["number"] = -1
        self._numbers = np.zeros(4, np.int64)
        self._places = np.empty(num_blocks, np.int64)
        self._hinted: OrderedDict[str, int] = OrderedDict()

    def begin(self, prompt: Fingerprints, prompt_tokens: int, arrival: float, hint: str | None = None) -> Known:
        """A request begins.

        Args:
            prompt: (n,) fingerprints of its prompt's full blocks.
            prompt_tokens: tokens of its prompt.
            arrival: seconds, on any clock that does not change.
            hint: the client's name for the session; None: by lineage.
        """
        hinted = BY_LINEAGE if hint is None else self._number_of(hint)
        if len(prompt) > len(self._places):
            self._places = np.empty(len(prompt), np.int64)
        session = int(_begin(self._seen, self._numbers, self._sessions, hinted, prompt, prompt_tokens, self._places))
        record = self._sessions[session % len(self._sessions)]
        if hint is not None:
            self._hinted[hint] = session
        turn = int(record["turn"]) + 1
        gap = arrival - float(record["arrival"]) if turn else float("nan")
        record["turn"], record["arrival"] = turn, arrival
        return Known(session, turn, gap, bool(record["agentic"]))

    def _number_of(self, hint: str) -> int:
        """The session that a client's name stands for, NEW if it is new or forgotten."""
        known = self._hinted.get(hint, NEW)
        if known >= 0:
            self._hinted.move_to_end(hint)
            if self._sessions[known % len(self._sessions)]["number"] != known:
                known = NEW
        elif len(self._hinted) >= len(self._sessions):
            self._hinted.popitem(last=False)
        return known

    def end(self, session: int, blocks: Fingerprints, agentic: bool) -> None:
        """A request is over; `blocks` are the full blocks that it generated, or the prompt's last if there are none."""
        _end(self._seen, self._numbers, session, blocks)
        record = self._sessions[session % len(self._sessions)]
        if record["number"] == session and agentic:
            record["agentic"] = 1
