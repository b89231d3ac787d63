"""MT-bench-101: multi-turn chats, ``{"task", "id", "history": [{"user", "bot"}]}``; no times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, Message, message_of, replies_of
from saecache_rl.workloads.records import BadRecordError, pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"task", "id", "history": [{"user": text, "bot": text}]} a line',
    "get data/subjective/mtbench101.jsonl of github.com/mtbench101/mt-bench-101 (plain or .gz)",
)


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one chat."""
    history = pick(record.fields, "history")
    if not isinstance(history, list):
        raise BadRecordError("history is no list")
    messages: list[Message] = []
    for turn in history:
        if not isinstance(turn, dict):
            raise BadRecordError("a turn of history is not an object")
        for field, role in (("user", "user"), ("bot", "assistant")):
            messages.append(message_of({"role": role, "content": pick(turn, field)}))
    key = f"{record.fields.get('task', '')}-{pick(record.fields, 'id')}"
    yield Dialogue(record.place, tuple(messages), replies_of(messages), key=key)


def load(**options: Any) -> Trace:
    """Load a file; conf/workload/mt_bench_101.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    return load_dialogues(options, TEXT, dialogues)
