"""ShareGPT: conversations of people with chat models, ``{"id", "conversations": [{"from", "value"}]}``; no times.

An id ends in ``_0``, ``_1``, … where one chat was cut in pieces; they are joined again in that order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, Message, joined, messages_of, replies_of, tools_of
from saecache_rl.workloads.records import BadRecordError, pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"id", "conversations": [{"from": "human" or "gpt", "value": text}]}, a JSON list of them or one a line',
    "get ShareGPT_V3_unfiltered_cleaned_split.json from huggingface.co/datasets/anon8231489123/"
    "ShareGPT_Vicuna_unfiltered",
)
_PIECE = re.compile(r"(.+)_(\d+)")


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one conversation, or a piece of one."""
    fields = record.fields
    key = fields.get("id")
    if key is not None and not isinstance(key, str | int):
        raise BadRecordError("id is neither text nor a number")
    listed = pick(fields, "conversations", "conversation", "items")
    messages = messages_of(listed, role_field="from", content_field="value")
    if isinstance(fields.get("system"), str) and fields["system"]:
        messages.insert(0, Message("system", fields["system"]))
    name = None if key is None else str(key)
    yield Dialogue(record.place, tuple(messages), replies_of(messages), tools_of(fields.get("tools")), name)


def _join(messages: list[Message], more: Iterable[Message]) -> None:
    for message in more:
        if messages and message.role == "assistant" == messages[-1].role:
            messages.append(joined(messages.pop(), message))
        else:
            messages.append(message)


def load(**options: Any) -> Trace:
    """Load a file; conf/workload/sharegpt.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    pieces_joined = 0

    def join_pieces(found: Iterator[Dialogue]) -> Iterable[Dialogue]:
        """Yield chats whole, where their first piece stood; a piece without the ones before it stays by itself."""
        nonlocal pieces_joined
        whole = list(found)
        pieces: dict[str, dict[int, Dialogue]] = {}
        for dialogue in whole:
            match = _PIECE.fullmatch(dialogue.key or "")
            if match:
                pieces.setdefault(match[1], {}).setdefault(int(match[2]), dialogue)
        taken: set[int] = set()
        for dialogue in whole:
            match = _PIECE.fullmatch(dialogue.key or "")
            if id(dialogue) in taken:
                continue
            if not match or pieces[match[1]].get(int(match[2])) is not dialogue:
                yield dialogue
                continue
            own = pieces[match[1]]
            number = int(match[2])
            while number - 1 in own and id(own[number - 1]) not in taken:
                number -= 1  # pieces may stand in any order
            messages = list(own[number].messages)
            taken.add(id(own[number]))
            while number + 1 in own:
                number += 1
                _join(messages, own[number].messages)
                taken.add(id(own[number]))
                pieces_joined += 1
            yield Dialogue(dialogue.place, tuple(messages), replies_of(messages), dialogue.tools, dialogue.key)

    def notes() -> dict[str, str]:
        return {"pieces_joined": str(pieces_joined)}

    gather = join_pieces if options.pop("join_pieces") else iter
    return load_dialogues(options, TEXT, dialogues, gather=gather, notes=notes)
