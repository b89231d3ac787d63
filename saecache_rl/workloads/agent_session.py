"""One session file of kv-cache-tester: its requests, its sub-agents, what its replies and its blocks' tokens are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.records import BadRecordError, Malformed, block_ids, count, seconds
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, completed_blocks

Longs = npt.NDArray[np.int64]
_LARGEST_ID = 2**26  # more blocks than any session has
_NOTHING = np.empty(0, np.int64)


class AgentRequest(NamedTuple):
    """One request; `seconds` from the start of the file's session, `ids` of its prompt's full blocks."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    ids: Longs
    flags: int
    input_type: TokenType  # of what is new in its prompt, the earlier reply apart
    reasoning_share: float  # of its reply's tokens
    reply_seconds: float  # nan where the file does not say


@dataclass(frozen=True)
class AgentSession:
    """The requests of a session or of a sub-agent, in order of time, at least one."""

    block_size: int
    tool_tokens: int
    system_tokens: int
    requests: list[AgentRequest]


class Found(NamedTuple):
    """A file's session and its sub-agents; how many `max_prompt_tokens` ended; how many times fell."""

    sessions: list[AgentSession]
    ended: int
    falls: int


def _kinds(record: Mapping[str, Any], field: str) -> list[str]:
    value = record.get(field) or []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise BadRecordError(f"{field} is no list of names")
    return value


def _request(record: Any, block_size: int, since: float, tools: bool) -> AgentRequest:
    if not isinstance(record, dict):
        raise BadRecordError("not an object")
    prompt = count(record, "in", "input_tokens", least=1)
    ids = block_ids(record, "hash_ids", largest=_LARGEST_ID)
    if len(ids) not in (prompt // block_size, -(-prompt // block_size)):
        raise BadRecordError(f"{len(ids)} hash_ids for {prompt} tokens in blocks of {block_size}")
    new, said = _kinds(record, "input_types"), _kinds(record, "output_types")
    calls = record.get("stop") == "tool_use" or "tool_use" in said
    has_tools = tools or "tool_result" in new or "tool_use" in new
    return AgentRequest(
        seconds=since + seconds(record, "t"),
        prompt_tokens=prompt,
        output_tokens=count(record, "out", "output_tokens"),
        ids=ids[: prompt // block_size],
        flags=HAS_TOOLS * has_tools | ENDED_FOR_TOOL * calls,
        input_type=TokenType.TOOL_OUTPUT if "tool_result" in new else TokenType.USER,
        reasoning_share=("thinking" in said) / max(len(set(said)), 1),
        reply_seconds=math.nan if record.get("api_time") is None else seconds(record, "api_time"),
    )


def sessions_of(record: Mapping[str, Any], name: str, malformed: Malformed, max_prompt_tokens: int | None) -> Found:
    """Read a file's session and its sub-agents.

    Args:
        record: the file's JSON object.
        name: of the file, for messages.
        malformed: counts the requests, and those that are malformed and so left out.
        max_prompt_tokens: a session ends before its first prompt above this.

    Raises:
        BadRecordError: the file as a whole is not in the format.
    """
    block_size = count(record, "block_size", least=1)
    found: list[AgentSession] = []
    ended = falls = 0

    def walk(part: Mapping[str, Any], since: float, place: str, depth: int) -> None:
        nonlocal ended, falls
        entries = part.get("requests")
        if not isinstance(entries, list) or depth > 8:
            raise BadRecordError("no list of requests")
        tool, system = count(part, "tool_tokens"), count(part, "system_tokens")
        here: list[AgentRequest] = []
        slot = len(found)
        for n, entry in enumerate(entries):
            at = f"{place} request {n}"
            try:
                if isinstance(entry, dict) and entry.get("type") == "subagent":
                    walk(entry, since + seconds(entry, "t"), at, depth + 1)
                else:
                    malformed.records += 1
                    here.append(_request(entry, block_size, since, tool > 0))
            except BadRecordError as problem:
                malformed.add(at, problem)
        falls += sum(b.seconds < a.seconds for a, b in pairwise(here))
        here.sort(key=lambda r: r.seconds)
        if max_prompt_tokens is not None:
            over = next((n for n, r in enumerate(here) if r.prompt_tokens > max_prompt_tokens), len(here))
            ended += over < len(here)
            here = here[:over]
        if here:
            found.insert(slot, AgentSession(block_size, tool, system, here))

    walk(record, 0.0, name, 0)
    return Found(_dense(found), ended, falls)


def _dense(sessions: list[AgentSession]) -> list[AgentSession]:
    """Return the sessions with ids below the number of their blocks, by which tables are sized, as they mostly are."""
    every = [r.ids for session in sessions for r in session.requests]
    size = sum(map(len, every))
    if max((int(ids.max()) for ids in every if len(ids)), default=0) <= size:
        return sessions
    known = np.unique(np.concatenate(every))
    return [replace(s, requests=[r._replace(ids=np.searchsorted(known, r.ids)) for r in s.requests]) for s in sessions]


def _extends(request: AgentRequest, following: AgentRequest) -> bool:
    full = len(request.ids)
    return len(following.ids) >= full and bool(np.array_equal(following.ids[:full], request.ids))


def replies(session: AgentSession) -> list[Longs]:
    """Return, for each request, the blocks that its reply completes, where the next prompt shows them, else none.

    The next prompt shows them where it extends this one and is long enough to hold the whole reply; a rewritten
    history, or a reply shortened in it (thinking left out), does not.
    """
    shown = []
    for request, following in zip(session.requests, [*session.requests[1:], None], strict=True):
        reply = _NOTHING
        spoken = request.prompt_tokens + request.output_tokens
        if following is not None and following.prompt_tokens >= spoken and _extends(request, following):
            completed = completed_blocks(request.prompt_tokens, request.output_tokens, session.block_size)
            reply = following.ids[len(request.ids) : len(request.ids) + int(completed)]
        shown.append(reply)
    return shown


def label(session: AgentSession, type_of: npt.NDArray[np.uint8]) -> None:
    """Enter the token type of each of the session's blocks into `type_of` (by id; 255: not known yet).

    Approximate, as the data gives lengths and kinds, not texts: a prompt is tools, system prompt, then messages; what
    a prompt adds to the one that it extends is that one's reply, then tool output or user text by `input_types`; a
    reply's tokens divide equally between its kinds of content, thinking first. A block has the type of most of its
    tokens, the first on a tie.
    """
    size = session.block_size
    before: AgentRequest | None = None
    structure = session.tool_tokens + session.system_tokens
    for request in session.requests:
        parts = [(session.tool_tokens, TokenType.TOOL_DEFINITION), (structure, TokenType.SYSTEM)]
        if before is not None and _extends(before, request):
            thought = before.prompt_tokens + round(before.output_tokens * before.reasoning_share)
            parts += [
                (before.prompt_tokens, before.input_type),
                (thought, TokenType.REASONING),
                (before.prompt_tokens + before.output_tokens, TokenType.RESPONSE),
            ]
        parts.append((request.prompt_tokens, request.input_type))
        new = np.flatnonzero(type_of[request.ids] == 255)
        if len(new):
            ends = np.minimum(np.maximum.accumulate([end for end, _ in parts]), request.prompt_tokens)
            starts = np.concatenate(([0], ends[:-1]))
            low = (new * size)[:, None]
            overlap = np.clip(np.minimum(low + size, ends) - np.maximum(low, starts), 0, None)
            kinds = np.array([int(kind) for _, kind in parts], np.uint8)
            type_of[request.ids[new]] = kinds[np.argmax(overlap, axis=1)]
        before = request
