"""Chatbot Arena: battles of two models over the same questions, with the time of each battle: two sessions a row.

The two models of a battle don't share a cache in reality; here both are sessions of one server, which begin together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, messages_of, replies_of
from saecache_rl.workloads.moments import UNITS, find_unit, moment
from saecache_rl.workloads.records import pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"question_id", "conversation_a", "conversation_b": [{"role", "content"}], "tstamp"} a row, as Parquet or JSON '
    "lines",
    "ask for access at huggingface.co/datasets/lmsys/chatbot_arena_conversations, then: huggingface-cli download "
    "--repo-type dataset lmsys/chatbot_arena_conversations",
)


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one battle."""
    fields = record.fields
    key = pick(fields, "question_id", "id")
    told = fields.get("tstamp", fields.get("timestamp"))
    start = None
    if told is not None:
        at = moment(told)
        start = at * UNITS[find_unit([at], None, record.place)[0]]
    for side in ("a", "b"):
        messages = messages_of(pick(fields, f"conversation_{side}"))
        yield Dialogue(record.place, tuple(messages), replies_of(messages), key=f"{key}-{side}", start=start)


def load(**options: Any) -> Trace:
    """Load a file or a folder of them; conf/workload/chatbot_arena.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    return load_dialogues(options, TEXT, dialogues, recorded=True)
