"""Which requests form a session: by lineage, which any engine can see, or by the client's own ids.

Everything here is causal: what is said of request r rests on requests 0 … r alone, so a trace that was cut short gives
the same leading rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.errors import InputError, nearest
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace

_INT = types.int32[::1]
_LONG = types.int64[::1]


@dataclass(frozen=True)
class Sessions:
    """The sessions of a trace's R requests, as an engine knows them.

    source: "lineage" or "hint".
    session: (R,) int32, dense in order of first appearance.
    turn: (R,) int32, 0 for a session's first request.
    gap_seconds: (R,) float64, arrival less the arrival of the session's previous request; nan at turn 0.
    agentic: (R,) uint8, 1 where the session has had tools (definitions, calls or outputs) in its requests up to this
        one, this one's own reply included: what is known when the request is released.
    """

    source: str
    session: npt.NDArray[np.int32]
    turn: npt.NDArray[np.int32]
    gap_seconds: npt.NDArray[np.float64]
    agentic: npt.NDArray[np.uint8]


@compiled(types.int64(_LONG, _INT, _LONG, _INT, _INT, _INT, _INT, _LONG, _INT))
def _lineage(  # type: ignore[no-untyped-def]
    prompt_start,
    prompt_blocks,
    generated_start,
    generated_blocks,
    prompt_tokens,
    toucher,  # per identity: the only session that has had the block; -1: none; -2: several have
    tail_of,  # per identity: the session whose latest chain ends in the block, or -1
    latest,  # per session: tokens of its latest prompt
    session,
):
    sessions = 0
    for r in range(len(prompt_tokens)):
        own = np.int32(-1)
        for i in range(prompt_start[r + 1] - 1, prompt_start[r] - 1, -1):
            block = prompt_blocks[i]
            candidate = tail_of[block]
            if candidate >= 0 and toucher[block] == candidate:
                # A prompt that is no longer than the session's latest does not extend it, whatever blocks they share.
                if prompt_tokens[r] > latest[candidate]:
                    own = candidate
                    tail_of[block] = -1
                break
        if own < 0:
            own = np.int32(sessions)
            sessions += 1
        session[r] = own
        latest[own] = prompt_tokens[r]
        tail = np.int32(-1)
        for i in range(prompt_start[r], prompt_start[r + 1]):
            tail = prompt_blocks[i]
            if toucher[tail] != own:
                toucher[tail] = own if toucher[tail] == -1 else -2
        for i in range(generated_start[r], generated_start[r + 1]):
            tail = generated_blocks[i]
            if toucher[tail] != own:
                toucher[tail] = own if toucher[tail] == -1 else -2
        if tail >= 0:
            tail_of[tail] = own
    return sessions


@compiled(types.void(_INT, types.float64[::1], _LONG, _INT, types.float64[::1], types.uint8[::1]))
def _along(session, arrival, previous, turn, gap, agentic):  # type: ignore[no-untyped-def]
    """Fill in turn and gap of each request, and spread `agentic` along each session."""
    for r in range(len(session)):
        before = previous[session[r]]
        if before < 0:
            turn[r], gap[r] = 0, np.nan
        else:
            turn[r] = turn[before] + 1
            gap[r] = arrival[r] - arrival[before]
            agentic[r] |= agentic[before]
        previous[session[r]] = r


def _sessions(trace: Trace, source: str, session: npt.NDArray[np.int32]) -> Sessions:
    requests = trace.num_requests
    agentic = ((trace.flags & (HAS_TOOLS | ENDED_FOR_TOOL)) != 0).astype(np.uint8)
    turn, gap_seconds = np.empty(requests, np.int32), np.empty(requests, np.float64)
    previous = np.full(requests, -1, np.int64)
    _along(session, np.ascontiguousarray(trace.arrival), previous, turn, gap_seconds, agentic)
    return Sessions(source, session, turn, gap_seconds, agentic)


def lineage(trace: Trace) -> Sessions:
    """Find sessions by what their prompts extend, as an engine without hints can.

    A request continues the session whose latest chain, generated blocks included, it extends: the deepest of its
    prompt's full blocks that is the last block of such a chain, of a session that alone has had this block, and the
    prompt is longer than that session's latest. A session's last block moves on when it continues, so that an
    old one no longer identifies it, and a block that several sessions have had identifies none. Everything else begins
    a session. A history that the client rewrites (compaction, reasoning stripped) therefore begins one too. Where a
    format does not name the blocks of a reply, the chain that it left ends with the prompt's last full block.
    """
    requests, identities = trace.num_requests, trace.num_identities
    session = np.empty(requests, np.int32)
    _lineage(
        np.ascontiguousarray(trace.prompt_start),
        np.ascontiguousarray(trace.prompt_blocks),
        np.ascontiguousarray(trace.generated_start),
        np.ascontiguousarray(trace.generated_blocks),
        np.ascontiguousarray(trace.prompt_tokens),
        np.full(identities, -1, np.int32),
        np.full(identities, -1, np.int32),
        np.empty(requests, np.int64),
        session,
    )
    return _sessions(trace, "lineage", session)


def hint(trace: Trace) -> Sessions:
    """Take the client's ids; a request without one is a session of its own.

    Raises:
        InputError: no request of the trace has an id.
    """
    if not (trace.session >= 0).any():
        raise InputError(f"{trace.name}: the data names no sessions; use engine.sessions=lineage")
    names = np.where(trace.session >= 0, trace.session.astype(np.int64), -1 - np.arange(trace.num_requests))
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return _sessions(trace, "hint", rank[which.reshape(-1)])


def find_sessions(trace: Trace, source: str) -> Sessions:
    """Return `lineage(trace)` or `hint(trace)`, by name.

    Raises:
        InputError: another name, or "hint" for a trace that names no sessions.
    """
    known = {"lineage": lineage, "hint": hint}
    if source not in known:
        raise InputError(f"engine.sessions={source}: unknown; choose lineage or hint{nearest(str(source), known)}")
    return known[source](trace)
