"""Hints of a client, all optional, in `SamplingParams.extra_args` (over HTTP: `vllm_xargs`, flat values or JSON text).

| name | value | meaning |
| --- | --- | --- |
| session_id | text of 1 to 256 characters | requests of one id form a session |
| session_kind | single, chat or agentic | single: no further turn; agentic: the session uses tools; chat: it does not |
| spans | [[start, end, type], …], tokens | token types, for those of the chat template; JSON text, or flat |
| priority | 0 to 99, 50 if only seconds are given | lower goes first among retained blocks |
| retention_seconds | above 0, at most a week; 60 if only a priority is given | how long a hit retains blocks |
| no_reuse | true or false | the request's own blocks go first |

A hint moves a block's rank and pins nothing. What is not as described is ignored and counted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saecache_rl.vocabulary import TOKEN_TYPE_NAMES, TokenType

NAMES = ("session_id", "session_kind", "spans", "priority", "retention_seconds", "no_reuse")
KINDS = ("single", "chat", "agentic")
HIGHEST_PRIORITY = 99
LONGEST_RETENTION = 7 * 24 * 3600.0
DEFAULT_PRIORITY, DEFAULT_RETENTION = 50, 60.0
LONGEST_ID = 256
MOST_SPANS = 4096

#: Start, end (tokens, end not included) and type.
Span = tuple[int, int, TokenType]


@dataclass(frozen=True)
class Hints:
    """The valid hints of a request; None where there is none. priority and retention_seconds come together."""

    session_id: str | None = None
    session_kind: str | None = None
    spans: tuple[Span, ...] | None = None
    priority: int | None = None
    retention_seconds: float | None = None
    no_reuse: bool = False


NONE = Hints()


def _session_id(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_ID:
        raise ValueError(value)
    return value


def _session_kind(value: Any) -> str:
    if value not in KINDS:
        raise ValueError(value)
    return str(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or float(value) != int(float(value)):
        raise ValueError(value)
    return int(float(value))


def _priority(value: Any) -> int:
    number = _whole(value)
    if not 0 <= number <= HIGHEST_PRIORITY:
        raise ValueError(value)
    return number


def _retention_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    seconds = float(value)
    if not (math.isfinite(seconds) and 0.0 < seconds <= LONGEST_RETENTION):
        raise ValueError(value)
    return seconds


def _no_reuse(value: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if not isinstance(value, bool | int | str) or str(value).lower() not in known:
        raise ValueError(value)
    return known[str(value).lower()]


def _spans(value: Any) -> tuple[Span, ...]:
    rows = json.loads(value) if isinstance(value, str) else value
    if not isinstance(rows, list | tuple):
        raise ValueError(value)
    if rows and not isinstance(rows[0], list | tuple):
        if len(rows) % 3:
            raise ValueError(value)
        rows = [rows[i : i + 3] for i in range(0, len(rows), 3)]
    if len(rows) > MOST_SPANS:
        raise ValueError(value)
    spans: list[Span] = []
    for row in rows:
        start, end, name = row
        kind = TokenType(TOKEN_TYPE_NAMES.index(name))
        if not (spans[-1][1] if spans else 0) <= _whole(start) < _whole(end) < 2**31:
            raise ValueError(value)
        spans.append((_whole(start), _whole(end), kind))
    return tuple(spans)


_READERS = {
    "session_id": _session_id,
    "session_kind": _session_kind,
    "spans": _spans,
    "priority": _priority,
    "retention_seconds": _retention_seconds,
    "no_reuse": _no_reuse,
}


def read_hints(extra_args: Mapping[str, Any] | None, ignored: Counter[str]) -> Hints:
    """The valid hints among a request's extra arguments; each that is not valid is counted in `ignored` by name."""
    if not extra_args:
        return NONE
    found: dict[str, Any] = {}
    for name, read in _READERS.items():
        value = extra_args.get(name)
        if value is None:
            continue
        try:
            found[name] = read(value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            ignored[name] += 1
    if not found:
        return NONE
    if "priority" in found or "retention_seconds" in found:
        found.setdefault("priority", DEFAULT_PRIORITY)
        found.setdefault("retention_seconds", DEFAULT_RETENTION)
    return Hints(**found)
