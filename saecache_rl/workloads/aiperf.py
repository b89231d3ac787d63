"""AIPerf's sessions (``aiperf synthesize agentic-code``): ids of the blocks of what is new in each turn.

A session's first turn has its time (ms) and the blocks of its whole prompt; a later one has the delay (ms) since the
one before, the tokens that are new and their blocks. Its prompt is all before it, replies included. The delay is taken
from the start of the turn before, as the data does not say how long a reply takes.
"""

from __future__ import annotations

from typing import Any

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.arrivals import Arrivals
from saecache_rl.workloads.chat_template import NO_TOKENS, Tokens, join
from saecache_rl.workloads.lengths import Stream, of_blocks
from saecache_rl.workloads.records import BadRecordError, Malformed, block_ids, count, find, pick, seconds
from saecache_rl.workloads.sources import Record, Text, open_sources, records_of
from saecache_rl.workloads.token_sessions import Limits, TokenRequest, TokenSession, trace_of_sessions
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"session_id", "input_length", "output_length", "hash_ids", "timestamp": ms (first turn) or "delay": ms} a line',
    "make dataset.jsonl with: aiperf synthesize agentic-code, or get docs/traces of github.com/ai-dynamo/aiperf",
)
_LARGEST_ID = 2**40


class _Turn:
    """A turn as its line has it."""

    def __init__(self, record: Record, block_size: int) -> None:
        fields = record.fields
        self.key = str(pick(fields, "session_id"))
        self.tokens = count(fields, "input_length", "input_tokens", least=1)
        self.output = count(fields, "output_length", "output_tokens")
        self.ids = block_ids(fields, "hash_ids", largest=_LARGEST_ID)
        if len(self.ids) != -(-self.tokens // block_size):
            raise BadRecordError(
                f"{len(self.ids)} hash_ids for {self.tokens} new tokens in blocks of {block_size}, expected "
                f"{-(-self.tokens // block_size)}"
            )
        self.starts = "delay" not in fields and "delay_ms" not in fields
        self.seconds = (
            seconds(fields, "timestamp", "timestamp_ms", scale=1000)
            if self.starts
            else seconds(fields, "delay", "delay_ms", scale=1000)
        )


def load(**options: Any) -> Trace:
    """Load a dataset; conf/workload/aiperf.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    arrivals, limits = Arrivals.read(options, recorded=True), Limits.read(options)
    place = find(options["path"], TEXT.remedy)
    malformed = Malformed(str(place), TEXT.expected, TEXT.remedy)
    sessions: dict[str, list[_Turn]] = {}
    for source in open_sources(place, (), TEXT.remedy):
        for record in records_of(source, malformed):
            try:
                turn = _Turn(record, limits.block_size)
                own = sessions.setdefault(turn.key, [])
                if turn.starts == bool(own):
                    raise BadRecordError(
                        f"session {turn.key} starts a second time"
                        if own
                        else f"session {turn.key} has a delay, but no turn with a timestamp before it"
                    )
                own.append(turn)
            except BadRecordError as problem:
                malformed.add(record.place, problem)
    malformed.check()
    stream = Stream()

    def session_of(turns: list[_Turn]) -> TokenSession:
        parts: list[Tokens] = []
        rows = []
        length, at = 0, 0.0
        for turn in turns:
            parts.append(of_blocks(turn.ids, turn.tokens, limits.block_size, TokenType.UNKNOWN))
            length += turn.tokens
            at += turn.seconds
            rows.append(TokenRequest(NO_TOKENS, length, turn.output, turn.output, 0, at))
            parts.append(stream.fresh(turn.output, TokenType.RESPONSE))
            length += turn.output
        whole = join(parts)
        return TokenSession([row._replace(tokens=whole) for row in rows])

    return trace_of_sessions(
        (session_of(turns) for turns in sessions.values() if turns),
        name=str(options["name"]),
        source=str(place),
        limits=limits,
        arrivals=arrivals,
        notes=lambda: {
            "file": place.name,
            "malformed_lines": malformed.note(),
            "delays": "from start to start of turns",
        },
    )
