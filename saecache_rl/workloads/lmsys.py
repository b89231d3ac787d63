"""LMSYS-Chat-1M: ``{"conversation_id", "model", "conversation": [{"role", "content"}], …}``; no times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, messages_of, replies_of
from saecache_rl.workloads.records import pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"conversation_id", "conversation": [{"role", "content"}]} a row, as Parquet or JSON lines',
    "ask for access at huggingface.co/datasets/lmsys/lmsys-chat-1m, then: huggingface-cli download --repo-type dataset "
    "lmsys/lmsys-chat-1m",
)


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one conversation."""
    messages = messages_of(pick(record.fields, "conversation", "messages"))
    key = str(pick(record.fields, "conversation_id", "conversation_hash", "id"))
    yield Dialogue(record.place, tuple(messages), replies_of(messages), key=key)


def load(**options: Any) -> Trace:
    """Load a file or a folder of them; conf/workload/lmsys.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    return load_dialogues(options, TEXT, dialogues)
