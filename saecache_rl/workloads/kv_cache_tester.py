"""The sessions of kv-cache-tester (callanjfox/kv-cache-tester): coding agents, block ids local to a session.

Start times and what sessions share are not in the data. Here sessions start as a Poisson process, the times within a
session kept, and sessions with equal lengths of tools and system prompt share the blocks of these; `Trace.notes` says
so.
A sub-agent is a session of its own, with its parent's ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.agent_session import AgentRequest, AgentSession, label, replies, sessions_of
from saecache_rl.workloads.assemble import GENERATED, RawRequests, assemble
from saecache_rl.workloads.options import COUNT, FRACTION, POSITIVE, Bounds, choice, number, whole
from saecache_rl.workloads.records import BadRecordError, Malformed, find, parse, read_bytes
from saecache_rl.workloads.trace import Trace

REMEDY = "get the traces folder of github.com/callanjfox/kv-cache-tester (one JSON file a session, plain or .gz)"
EXPECTED = (
    '{"block_size", "tool_tokens", "system_tokens", "requests": [{"t", "type", "in", "out", "hash_ids", …}]} a file'
)

Longs = npt.NDArray[np.int64]


class _Row(NamedTuple):
    """One request as it goes into the trace."""

    arrival: float
    session: int
    turn: int
    request: AgentRequest
    raw: Longs  # prompt blocks, then those of the reply that the next turn shows
    token_type: npt.NDArray[np.uint8]


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return [folder]
    inner = folder / "traces"
    if inner.is_dir():
        folder = find(inner, REMEDY)
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")) and p.is_file())
    if not found:
        raise InputError(f"{folder}: no .json or .json.gz file in it; {REMEDY}")
    return found


def _rows(
    top: list[AgentSession], start: float, number: int, namespace: int, shared: dict[tuple[int, int], int], share: bool
) -> list[_Row]:
    """Return the rows of one file's session and its sub-agents, which are numbered from `number` on."""
    largest = max((int(r.ids.max()) for s in top for r in s.requests if len(r.ids)), default=0)
    raw_of = np.arange(largest + 1, dtype=np.int64) + (namespace << 32)
    type_of = np.full(largest + 1, 255, np.uint8)
    claimed = np.zeros(largest + 1, bool)
    rows = []
    for s, session in enumerate(top):
        lead = session.requests[0].ids[: (session.tool_tokens + session.system_tokens) // session.block_size]
        if share and len(lead):
            group = shared.setdefault((session.tool_tokens, session.system_tokens), len(shared))
            free = np.flatnonzero(~claimed[lead])
            raw_of[lead[free]] = (1 << 61) + (group << 24) + free
        claimed[lead] = True
        label(session, type_of)
        for turn, (request, reply) in enumerate(zip(session.requests, replies(session), strict=True)):
            ids = np.concatenate((request.ids, reply))
            rows.append(_Row(start + request.seconds, number + s, turn, request, raw_of[ids], type_of[ids]))
    return rows


def load(
    *,
    name: str,
    path: str | None,
    requests: int | None,
    sessions: int | None,
    arrivals: str,
    session_rate: float,
    seed: int,
    share: float,
    generated: str,
    max_prompt_tokens: int | None,
) -> Trace:
    """Load a folder of sessions; the block size is the files' own.

    Args:
        name: of the workload.
        path: the folder, or the one that holds it as `traces`; a single file is read too.
        requests: how many to keep, the earliest; None: all.
        sessions: how many files to draw, from `seed`; None: all.
        arrivals: "poisson": files' sessions start in an order and at times drawn from `seed`, `session_rate` a second.
        session_rate: starts a second.
        seed: of the draws.
        share: fraction of the files, drawn, whose tools-and-system blocks are shared among those of equal (tool_tokens,
            system_tokens); the others keep theirs to themselves.
        generated: "known" (where the next prompt extends this one and holds the whole reply), "none" or "unique".
        max_prompt_tokens: a session ends before its first prompt above this; None: no limit.

    Raises:
        InputError: an option is impossible, or the folder is absent or its files are not in the format.
    """
    wanted = None if requests is None else whole("workload.requests", requests)
    draws = None if sessions is None else whole("workload.sessions", sessions)
    limit = None if max_prompt_tokens is None else whole("workload.max_prompt_tokens", max_prompt_tokens, COUNT)
    seed = whole("workload.seed", seed, Bounds(0, 2**63 - 1, whole=True))
    if arrivals == "recorded":
        raise InputError("workload.arrivals=recorded: the data does not say when sessions started; choose poisson")
    choice("workload.arrivals", arrivals, ("poisson",))
    rate = number("workload.session_rate", session_rate, POSITIVE)
    share = number("workload.share", share, FRACTION)
    choice("workload.generated", generated, GENERATED)

    folder = find(path, REMEDY)
    files = _files(folder)
    random = np.random.Generator(np.random.PCG64(seed))
    # All draws precede the reading, so that a malformed file changes no other session's part.
    order = random.permutation(len(files))[:draws]
    starts = np.cumsum(random.exponential(1.0, len(order))) / rate
    sharing = random.random(len(order)) < share

    malformed_files = Malformed(str(folder), EXPECTED, REMEDY)
    malformed = Malformed(str(folder), EXPECTED, REMEDY)
    rows: list[_Row] = []
    shared: dict[tuple[int, int], int] = {}
    sizes: dict[int, str] = {}
    used = ended = falls = 0
    for place, which in enumerate(order):
        file = files[which]
        malformed_files.records += 1
        try:
            found = sessions_of(parse(read_bytes(file, REMEDY)), file.name, malformed, limit)
        except BadRecordError as problem:
            malformed_files.add(file.name, problem)
            continue
        ended, falls = ended + found.ended, falls + found.falls
        if found.sessions:
            sizes.setdefault(found.sessions[0].block_size, file.name)
            rows += _rows(found.sessions, float(starts[place]), used, place + 1, shared, bool(sharing[place]))
            used += len(found.sessions)
    malformed_files.check()
    malformed.check()
    if len(sizes) > 1:
        raise InputError(
            f"{folder}: block_size differs: {', '.join(f'{f} has {b}' for b, f in sizes.items())}; load each apart"
        )
    if not rows:
        raise InputError(f"workload.max_prompt_tokens={limit}: no prompt of {folder} is that short; raise it")
    rows.sort(key=lambda row: row.arrival)
    rows = rows[:wanted]
    size = next(iter(sizes))
    columns = RawRequests(
        arrival=np.round(np.array([r.arrival for r in rows]) - rows[0].arrival, 6),
        session=np.array([r.session for r in rows], np.int64),
        turn=np.array([r.turn for r in rows], np.int32),
        prompt_tokens=np.array([r.request.prompt_tokens for r in rows], np.int64),
        output_tokens=np.array([r.request.output_tokens for r in rows], np.int64),
        flags=np.array([r.request.flags for r in rows], np.uint8),
        phase=np.zeros(len(rows), np.uint8),
        generated=np.array([len(r.raw) - r.request.prompt_tokens // size for r in rows], np.int64),
        raw=np.concatenate([r.raw for r in rows]),
        token_type=np.concatenate([r.token_type for r in rows]),
    )
    notes = {
        "folder": folder.name,
        "sessions": f"{len(order)} of {len(files)} files drawn, {used} sessions with sub-agents",
        "arrivals": f"poisson, {rate:g} session starts a second, seed {seed}",
        "share": f"{share:g} of the files share tools-and-system blocks by equal lengths",
        "generated": generated,
        "max_prompt_tokens": "none" if limit is None else f"{limit} ({ended} sessions ended by it)",
        "malformed_files": malformed_files.note(),
        "malformed_requests": malformed.note(),
        "times_that_fall": f"{falls} (sorted)" if falls else "0",
    }
    took = np.array([r.request.reply_seconds for r in rows])
    del rows
    trace = assemble(columns, name=name, block_size=size, generated=generated, notes=notes, reply_seconds=took)
    trace.validate()
    return trace
