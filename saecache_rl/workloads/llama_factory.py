"""LLaMA-Factory: dialogues with tools and reasoning, ``{"messages": [{"role", "content"}], "tools"}``; no times.

A content is text, or a list of parts of type text, reasoning or tool_call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, messages_of, replies_of, tools_of
from saecache_rl.workloads.records import pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"messages": [{"role", "content": text or [{"type", "value"}]}], "tools": JSON text} a line',
    "get data/reason_tool_use_demo_50.jsonl of github.com/hiyouga/LLaMA-Factory (plain or .gz)",
)


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one dialogue."""
    messages = messages_of(pick(record.fields, "messages"))
    yield Dialogue(record.place, tuple(messages), replies_of(messages), tools_of(record.fields.get("tools")))


def load(**options: Any) -> Trace:
    """Load a file; conf/workload/llama_factory.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    return load_dialogues(options, TEXT, dialogues)
