"""Sessions given token by token to a trace: arrivals placed, blocks made, columns sorted by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.arrivals import Arrivals, Times
from saecache_rl.workloads.assemble import GENERATED, RawRequests, assemble, ragged
from saecache_rl.workloads.chat_template import Tokens
from saecache_rl.workloads.options import COUNT, Bounds, choice, whole
from saecache_rl.workloads.prompts import keeper, prompts_of
from saecache_rl.workloads.token_blocks import blocks_of
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace, completed_blocks


class TokenRequest(NamedTuple):
    """One request.

    tokens: its prompt, then its reply as far as it is known, then anything; the same object in several requests is
        looked at once.
    known: tokens of the reply that are in `tokens`.
    seconds: nan where unknown.
    words: hashed words of what is new in it, None where the source has no text.
    text: the latest text before the reply, None where there is none or nobody asks for it.
    """

    tokens: Tokens
    prompt_tokens: int
    output_tokens: int
    known: int
    flags: int
    seconds: float
    words: npt.NDArray[np.uint32] | None = None
    text: str | None = None


class TokenSession(NamedTuple):
    """Requests in order; `anonymous`: the source names no sessions, so the trace does not either."""

    requests: list[TokenRequest]
    anonymous: bool = False


@dataclass(frozen=True)
class Limits:
    """What every loader of sessions takes: see `read`."""

    block_size: int
    requests: int | None
    max_prompt_tokens: int | None
    generated: str

    @staticmethod
    def read(options: Mapping[str, Any], generated: tuple[str, ...] = GENERATED) -> Limits:
        """Read block_size, requests, max_prompt_tokens and generated.

        Raises:
            InputError: one of them is impossible.
        """
        wanted, limit = options["requests"], options["max_prompt_tokens"]
        return Limits(
            block_size=whole("workload.block_size", options["block_size"], Bounds(1, 2**20, whole=True)),
            requests=None if wanted is None else whole("workload.requests", wanted),
            max_prompt_tokens=None if limit is None else whole("workload.max_prompt_tokens", limit, COUNT),
            generated=choice("workload.generated", options["generated"], generated),
        )


class _Row(NamedTuple):
    arrival: float
    session: int
    turn: int
    request: TokenRequest
    raw: npt.NDArray[np.int64]
    token_type: npt.NDArray[np.uint8]


def trace_of_sessions(
    sessions: Iterable[TokenSession],
    *,
    name: str,
    source: str,
    limits: Limits,
    arrivals: Arrivals,
    notes: Callable[[], Mapping[str, str]],
) -> Trace:
    """Make the trace.

    Args:
        sessions: read once, one after the other; tokens are let go of.
        name: of the workload.
        source: the file, for messages.
        limits, arrivals: the options.
        notes: what the loader has to say, asked for when all sessions are read; completed here.

    Raises:
        InputError: nothing is left, or times are missing.
    """
    size = limits.block_size
    rows: list[list[_Row]] = []
    times: list[Times] = []
    ended = 0
    for number, session in enumerate(sessions):
        requests = session.requests
        if limits.max_prompt_tokens is not None:
            long = [r.prompt_tokens > limits.max_prompt_tokens for r in requests]
            if any(long):
                requests, ended = requests[: long.index(True)], ended + 1
        if not requests:
            continue
        flags = [r.flags for r in requests]
        times.append(
            Times(
                np.array([r.seconds for r in requests], np.float64),
                np.array([False, *((f & ENDED_FOR_TOOL) != 0 for f in flags[:-1])]),
            )
        )
        rows.append(_rows(requests, -1 if session.anonymous else number, size))
    if not rows:
        raise InputError(
            f"workload.max_prompt_tokens={limits.max_prompt_tokens}: no prompt of {source} is that short; raise it"
            if ended
            else f"{source}: no request in it; a request is a reply of the assistant to what was said before"
        )
    placed, said = arrivals.place(times, source)
    ordered = [
        row._replace(arrival=float(at))
        for arrival, own in zip(placed, rows, strict=True)
        for at, row in zip(arrival, own, strict=True)
    ]
    del rows
    ordered.sort(key=lambda row: row.arrival)
    ordered = ordered[: limits.requests]
    columns = RawRequests(
        arrival=np.round(np.array([r.arrival for r in ordered]) - ordered[0].arrival, 6),
        session=np.array([r.session for r in ordered], np.int64),
        turn=np.array([r.turn for r in ordered], np.int32),
        prompt_tokens=np.array([r.request.prompt_tokens for r in ordered], np.int64),
        output_tokens=np.array([r.request.output_tokens for r in ordered], np.int64),
        flags=np.array([r.request.flags for r in ordered], np.uint8),
        phase=np.zeros(len(ordered), np.uint8),
        generated=np.array([len(r.raw) - r.request.prompt_tokens // size for r in ordered], np.int64),
        raw=np.concatenate([r.raw for r in ordered]),
        token_type=np.concatenate([r.token_type for r in ordered]),
    )
    limit = limits.max_prompt_tokens
    all_notes = {
        **notes(),
        **said,
        "generated": limits.generated,
        "max_prompt_tokens": "none" if limit is None else f"{limit} ({ended} sessions ended by it)",
    }
    trace = assemble(columns, name=name, block_size=size, generated=limits.generated, notes=all_notes)
    words = [row.request.words for row in ordered]
    known = [w for w in words if w is not None]
    if len(known) == len(words):
        trace = replace(
            trace, words_start=ragged(np.array([len(w) for w in known], np.int64)), words=np.concatenate(known)
        )
    kept = keeper()
    if kept is not None:
        asked = [(r.request.tokens.ids, r.request.prompt_tokens, r.request.text) for r in ordered]
        kept.prompts = prompts_of([(ids, n, text) for ids, n, text in asked if text is not None])
        if len(kept.prompts.texts) < len(asked):
            kept.prompts = None
    trace.validate()
    return trace


def _rows(requests: list[TokenRequest], session: int, block_size: int) -> list[_Row]:
    """Make the blocks; what holds tokens is let go of, unless somebody asks for prompts."""
    rows = []
    nothing = Tokens(np.empty(0, np.int64), np.empty(0, np.uint8))
    before: Tokens | None = None
    for turn, request in enumerate(requests):
        if request.tokens is not before:
            before = request.tokens
            raw, token_type = blocks_of(before.ids, before.kinds, block_size)
        full = request.prompt_tokens // block_size
        reply = int(completed_blocks(request.prompt_tokens, request.output_tokens, block_size))
        if request.known < request.output_tokens - 1:
            reply = 0  # a reply that is known in part completes blocks that nobody knows
        kept = request if keeper() is not None else request._replace(tokens=nothing)
        named = -1 if session < 0 else turn
        of_request = slice(full + reply)
        rows.append(_Row(0.0, session, named, kept, raw[of_request].copy(), token_type[of_request].copy()))
    return rows
