"""OpenAssistant's message trees: every reply of the assistant in a tree is one request; no times.

A branch goes on with the first of a message's answers; the others begin sessions, whose prompts share what is above.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, Message, message_of
from saecache_rl.workloads.records import BadRecordError, pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"message_tree_id", "prompt": {"message_id", "text", "role", "replies": […]}} a line',
    "get the *_trees.jsonl.gz of huggingface.co/datasets/OpenAssistant/oasst1 (plain or .gz)",
)


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one tree, branch by branch."""
    tree = str(pick(record.fields, "message_tree_id"))
    # Of a branch: its messages above, its first node, and which of the messages above are not its own requests.
    waiting: list[tuple[list[Message], object]] = [([], pick(record.fields, "prompt"))]
    branch = 0
    while waiting:
        messages, node = waiting.pop()
        begin = len(messages)
        while node is not None:
            if not isinstance(node, dict):
                raise BadRecordError("a message is not an object")
            messages.append(message_of({"role": pick(node, "role"), "content": pick(node, "text")}))
            answers = node.get("replies") or []
            if not isinstance(answers, list):
                raise BadRecordError("replies are no list")
            waiting += [(list(messages), answer) for answer in reversed(answers[1:])]
            node = answers[0] if answers else None
        replies = tuple(n for n in range(max(begin, 1), len(messages)) if messages[n].role == "assistant")
        if replies or not branch:
            yield Dialogue(record.place, tuple(messages), replies, key=f"{tree}/{branch}")
        branch += 1


def load(**options: Any) -> Trace:
    """Load a file; conf/workload/openassistant.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    return load_dialogues(options, TEXT, dialogues)
