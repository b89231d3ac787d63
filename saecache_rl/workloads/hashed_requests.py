"""Traces of requests with lengths and, mostly, ids of their prompts' blocks: Mooncake, Bailian, Azure.

Ids are chained here, so one id under two predecessors is two identities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.assemble import RawRequests, assemble
from saecache_rl.workloads.options import POSITIVE, Bounds, choice, number, whole
from saecache_rl.workloads.records import BadRecordError, Malformed, find
from saecache_rl.workloads.sources import Record, Source, Text, open_sources
from saecache_rl.workloads.token_sessions import Limits
from saecache_rl.workloads.trace import Trace

LARGEST_ID = 2**62
Longs = npt.NDArray[np.int64]


class HashedRequest(NamedTuple):
    """One request; `ids` of its prompt's full blocks, `name` and `parent` of the request before it in its session."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    ids: Longs
    name: str | None = None
    parent: str | None = None


def check_ids(ids: Longs, prompt_tokens: int, block_size: int) -> Longs:
    """Return the ids of the full blocks; a source gives these, or those of a partial last block too.

    Raises:
        BadRecordError: another number of them.
    """
    full = prompt_tokens // block_size
    if len(ids) not in (full, -(-prompt_tokens // block_size)):
        raise BadRecordError(
            f"{len(ids)} hash_ids for {prompt_tokens} tokens in blocks of {block_size}, expected {full} full ones"
        )
    return ids[:full]


def unshared(number: int, prompt_tokens: int, block_size: int) -> Longs:
    """Return ids that no other request has: of request `number`, for a source that identifies no block."""
    return np.arange(prompt_tokens // block_size, dtype=np.int64) + (number << 32)


def _sessions(chosen: Sequence[HashedRequest]) -> tuple[Longs, npt.NDArray[np.int32]]:
    """Return each request's session and turn by the requests that they name before them; -1 where they name none."""
    session, turn = np.full(len(chosen), -1, np.int64), np.full(len(chosen), -1, np.int32)
    at: dict[str, int] = {}
    for r, request in enumerate(chosen):
        if request.name is None:
            continue
        before = at.get(request.parent) if request.parent is not None else None
        session[r], turn[r] = (r, 0) if before is None else (session[before], turn[before] + 1)
        at[request.name] = r
    return session, turn


def load_requests(
    options: dict[str, Any],
    text: Text,
    records: Callable[[Source, Malformed], Iterable[Record]],
    read: Callable[[Record, int], HashedRequest],
    *,
    notes: Callable[[], dict[str, str]] = dict,
) -> Trace:
    """Load a trace.

    Args:
        options: name, path, requests, block_size, arrivals ("recorded", or "poisson": in the recorded order, at
            session_rate requests a second), session_rate, seed, generated ("none" or "unique") and max_prompt_tokens
            (longer prompts are left out).
        text: of the format.
        records: a file's records.
        read: a record's request, for blocks of so many tokens.
        notes: what else goes into the trace's notes.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    if options["generated"] == "known":
        raise InputError(
            "workload.generated=known: the format does not name the blocks of replies; choose none or unique"
        )
    arrivals, given = options["arrivals"], options["session_rate"]
    choice("workload.arrivals", arrivals, ("recorded", "poisson"))
    limits = Limits.read(options, ("none", "unique"))
    seed = whole("workload.seed", options["seed"], Bounds(0, 2**63 - 1, whole=True))
    if arrivals == "poisson" and given is None:
        raise InputError("workload.session_rate=null: workload.arrivals=poisson needs it, in requests a second")
    rate = None if given is None else number("workload.session_rate", given, POSITIVE)

    place = find(options["path"], text.remedy)
    malformed = Malformed(str(place), text.expected, text.remedy)
    found: list[HashedRequest] = []
    for source in open_sources(place, (), text.remedy):
        for record in records(source, malformed):
            try:
                found.append(read(record, limits.block_size))
            except BadRecordError as problem:
                malformed.add(record.place, problem)
    malformed.check()
    arrival = np.array([r.arrival for r in found])
    falls = int(np.count_nonzero(np.diff(arrival) < 0))
    order = np.argsort(arrival, kind="stable")
    too_long = 0
    if limits.max_prompt_tokens is not None:
        kept = [i for i in order if found[i].prompt_tokens <= limits.max_prompt_tokens]
        too_long = len(order) - len(kept)
        order = np.array(kept, np.int64)
    order = order[: limits.requests]
    if not len(order):
        raise InputError(
            f"workload.max_prompt_tokens={limits.max_prompt_tokens}: no prompt of {place} is that short; raise it"
        )
    chosen = [found[i] for i in order]
    arrival = arrival[order] - arrival[order[0]]
    if arrivals == "poisson" and rate is not None:
        random = np.random.Generator(np.random.PCG64(seed))
        arrival = np.round(np.cumsum(random.exponential(1.0, len(order))) / rate, 6)
        arrival -= arrival[0]
    raw = np.concatenate([r.ids for r in chosen])
    session, turn = _sessions(chosen)
    columns = RawRequests(
        arrival=arrival,
        session=session,
        turn=turn,
        prompt_tokens=np.array([r.prompt_tokens for r in chosen], np.int64),
        output_tokens=np.array([r.output_tokens for r in chosen], np.int64),
        flags=np.zeros(len(order), np.uint8),
        phase=np.zeros(len(order), np.uint8),
        generated=np.zeros(len(order), np.int64),
        raw=raw,
        token_type=np.full(len(raw), TokenType.UNKNOWN, np.uint8),
    )
    limit = limits.max_prompt_tokens
    all_notes = {
        "file": place.name,
        "arrivals": "recorded" if arrivals == "recorded" else f"poisson, {rate:g} requests a second, seed {seed}",
        "generated": limits.generated,
        "max_prompt_tokens": "none" if limit is None else f"{limit} ({too_long} requests left out)",
        "malformed_lines": malformed.note(),
        "times_that_fall": f"{falls} (sorted)" if falls else "0",
        **notes(),
    }
    trace = assemble(
        columns, name=str(options["name"]), block_size=limits.block_size, generated=limits.generated, notes=all_notes
    )
    trace.validate()
    return trace
