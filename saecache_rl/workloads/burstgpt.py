"""BurstGPT's traces (HPMLL/BurstGPT): times in seconds, token counts and, in newer files, sessions.

The data does not say what prompts share. Within a session a prompt that is at least as long as the one before and its
reply is taken to hold both (`turns=cumulative`), or every prompt is taken to be new (`turns=independent`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.arrivals import Arrivals
from saecache_rl.workloads.chat_template import NO_TOKENS, join
from saecache_rl.workloads.lengths import Stream
from saecache_rl.workloads.moments import moment
from saecache_rl.workloads.options import choice
from saecache_rl.workloads.records import BadRecordError, Malformed, find, text_count
from saecache_rl.workloads.sources import Text, csv_rows, open_sources
from saecache_rl.workloads.token_sessions import Limits, TokenRequest, TokenSession, trace_of_sessions
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type, then a row each",
    "get BurstGPT_*.csv of github.com/HPMLL/BurstGPT (data, or its releases; plain or .gz)",
)
COLUMNS = {
    "arrival": ("Timestamp",),
    "?session": ("Session ID",),
    "prompt_tokens": ("Request tokens", "input_tokens"),
    "output_tokens": ("Response tokens", "output_tokens"),
}
TURNS = ("cumulative", "independent")


class _Row(NamedTuple):
    seconds: float
    prompt_tokens: int
    output_tokens: int


def load(**options: Any) -> Trace:
    """Load a trace; conf/workload/burstgpt.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    arrivals, limits = Arrivals.read(options, recorded=True), Limits.read(options)
    cumulative = choice("workload.turns", options["turns"], TURNS) == "cumulative"
    place = find(options["path"], TEXT.remedy)
    malformed = Malformed(str(place), TEXT.expected, TEXT.remedy)
    sessions: dict[str, list[_Row]] = {}
    failed = 0
    for source in open_sources(place, (), TEXT.remedy):
        for record in csv_rows(source, COLUMNS, malformed):
            try:
                row = _Row(
                    moment(record.fields["arrival"]),
                    text_count(record.fields, "prompt_tokens"),
                    text_count(record.fields, "output_tokens"),
                )
            except BadRecordError as problem:
                malformed.add(record.place, problem)
                continue
            if not row.prompt_tokens or not row.output_tokens:
                failed += 1  # BurstGPT logs failures so
                continue
            sessions.setdefault(record.fields.get("session") or f"\0{record.place}", []).append(row)
    malformed.check()
    stream = Stream()
    extended = new = 0

    def session_of(key: str, rows: list[_Row]) -> TokenSession:
        nonlocal extended, new
        requests: list[TokenRequest] = []
        before = NO_TOKENS
        for n, row in enumerate(sorted(rows)):
            holds = cumulative and row.prompt_tokens >= len(before.ids)
            if n:
                extended, new = extended + holds, new + (not holds)
            shared = before if holds else NO_TOKENS
            added = stream.fresh(row.prompt_tokens - len(shared.ids), TokenType.USER)
            before = join([shared, added, stream.fresh(row.output_tokens, TokenType.RESPONSE)])
            requests.append(
                TokenRequest(before, row.prompt_tokens, row.output_tokens, row.output_tokens, 0, row.seconds)
            )
        return TokenSession(requests, anonymous=key.startswith("\0"))

    return trace_of_sessions(
        (session_of(key, rows) for key, rows in sessions.items()),
        name=str(options["name"]),
        source=str(place),
        limits=limits,
        arrivals=arrivals,
        notes=lambda: {
            "file": place.name,
            "malformed_lines": malformed.note(),
            "failed_requests": f"{failed} left out",
            "turns": f"{options['turns']}: {extended} later prompts hold the one before, {new} are new",
        },
    )
