"""LMCache's agent traces: ``{"timestamp": microseconds, "input": prompt, "output": reply, "session_id"}``.

The prompt is one text without a template, so that nothing in it says what its parts are: its tokens are of unknown
type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, message_of
from saecache_rl.workloads.moments import UNITS, moment
from saecache_rl.workloads.records import BadRecordError, pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"timestamp": microseconds, "input": text, "output": text, "session_id"} a line',
    "get the .jsonl files of github.com/LMCache/lmcache-agent-trace (plain or .gz)",
)


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one request."""
    prompt = message_of({"role": "user", "content": pick(record.fields, "input")})
    if not prompt.content:
        raise BadRecordError("input is empty")
    reply = message_of({"role": "assistant", "content": pick(record.fields, "output")})
    at = moment(pick(record.fields, "timestamp")) * UNITS["microseconds"]
    key = str(pick(record.fields, "session_id"))
    yield Dialogue(record.place, (replace(prompt, role="unknown"), reply), (1,), key=key, part=True, seconds=(at,))


def load(**options: Any) -> Trace:
    """Load a file; conf/workload/lmcache_agent.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    return load_dialogues({**options, "template": "none", "reasoning": "kept"}, TEXT, dialogues, recorded=True)
