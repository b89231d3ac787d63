"""Messages of a conversation, whatever a source calls its roles and however it writes contents, calls and reasoning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saecache_rl.errors import nearest
from saecache_rl.workloads.records import BadRecordError

#: What sources call the four roles.
ROLES = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "bot", "model", "ai", "chatgpt", "bard", "bing", "function_call"),
    "tool": ("tool", "function", "observation", "ipython", "function_response", "tool_response"),
}
_ROLE_OF = {alias: role for role, aliases in ROLES.items() for alias in aliases}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_REASONING_PARTS = ("reasoning", "thinking")
_CALL_PARTS = ("tool_call", "tool_use", "function_call")
_RESULT_PARTS = ("tool_result", "function_response")


@dataclass(frozen=True)
class Message:
    """One message: role system, user, assistant or tool; `calls` are the tool calls of an assistant, as JSON."""

    role: str
    content: str
    reasoning: str = ""
    calls: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing is said in it."""
        return not (self.content or self.reasoning or self.calls)


@dataclass(frozen=True)
class Dialogue:
    """A conversation, or one request of it.

    place: where it stands in the source.
    messages: all of them, in order.
    replies: indices into `messages` of the assistant's messages that are replies, ascending: each is a request whose
        prompt is all before it. An index of len(messages) is a request whose reply the source does not tell.
    tools: the tool definitions as JSON text, "" for none.
    key: its name; the same conversation under the same name again is a repetition.
    part: it is a part of the session `key`, with other dialogues of that key; else a session by itself.
    seconds: of each request, None where the source has no times.
    start: of the first request alone, None where unknown.
    output_tokens: of each reply, where the source counts them; None: as tokenised.
    anonymous: the source tells nothing of sessions.
    """

    place: str
    messages: tuple[Message, ...]
    replies: tuple[int, ...]
    tools: str = ""
    key: str | None = None
    part: bool = False
    seconds: tuple[float, ...] | None = None
    start: float | None = None
    output_tokens: tuple[int | None, ...] | None = None
    anonymous: bool = False


def role_of(name: object) -> str:
    """Return the role that a source's name means.

    Raises:
        BadRecordError: none of the known ones.
    """
    if not isinstance(name, str) or name.strip().lower() not in _ROLE_OF:
        raise BadRecordError(f"unknown role {str(name)[:40]!r}{nearest(str(name), _ROLE_OF)}")
    return _ROLE_OF[name.strip().lower()]


def clean(text: str) -> str:
    """Return text whose halves of surrogate pairs are joined, lone ones replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def compact(value: object) -> str:
    """Return JSON on one line, keys in their own order."""
    return clean(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def message_of(record: object, role_field: str = "role", content_field: str = "content") -> Message:
    """Read one message: a content of text, null or typed parts, `tool_calls`, `reasoning_content`.

    Raises:
        BadRecordError: it is none.
    """
    if not isinstance(record, Mapping):
        raise BadRecordError("a message is not an object")
    if role_field not in record:
        raise BadRecordError(f"a message has no field {role_field}")
    role = role_of(record[role_field])
    message = _of_content(role, record.get(content_field))
    calls = [_call(call) for call in _sequence(record, "tool_calls")]
    if isinstance(record.get("function_call"), Mapping):
        calls.append(_call(record["function_call"]))
    if str(record[role_field]).strip().lower() == "function_call":
        return Message(role, "", message.reasoning, (message.content,))
    said = record.get("reasoning_content", record.get("reasoning", record.get("thinking")))
    reasoning = message.reasoning + (_text(said) if isinstance(said, str) else "")
    return Message(role, message.content, reasoning, message.calls + tuple(calls))


def messages_of(records: object, role_field: str = "role", content_field: str = "content") -> list[Message]:
    """Read a list of messages; two of the assistant in a row are one reply, a reply that says nothing stays.

    Raises:
        BadRecordError: it is no list, or one of them is no message.
    """
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise BadRecordError("messages are no list")
    found: list[Message] = []
    for record in records:
        message = message_of(record, role_field, content_field)
        if found and message.role == "assistant" == found[-1].role:
            message = joined(found.pop(), message)
        found.append(message)
    return found


def joined(first: Message, second: Message) -> Message:
    """Return two messages of one role as one."""
    text = "\n\n".join(part for part in (first.content, second.content) if part)
    reasoning = "\n\n".join(part for part in (first.reasoning, second.reasoning) if part)
    return replace(first, content=text, reasoning=reasoning, calls=first.calls + second.calls)


def replies_of(messages: Sequence[Message]) -> tuple[int, ...]:
    """Return which messages are replies: the assistant's, unless nobody has asked or brought anything before it.

    An assistant's greeting at the start is part of the later prompts, and no request.
    """
    asked = False
    found = []
    for n, message in enumerate(messages):
        if message.role == "assistant":
            if asked:
                found.append(n)
        elif message.role != "system":
            asked = True
    return tuple(found)


def tools_of(value: object) -> str:
    """Return tool definitions, a list or its JSON text, as JSON text; "" for none.

    Raises:
        BadRecordError: they are neither.
    """
    if value is None or value == "" or value == []:
        return ""
    if isinstance(value, str):
        return "" if value.strip() in ("", "[]", "null") else clean(value)
    if isinstance(value, Sequence):
        return "\n".join(compact(tool) for tool in value)
    raise BadRecordError("tools are neither a list nor text")


def _sequence(record: Mapping[str, Any], field: str) -> Sequence[Any]:
    value = record.get(field)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadRecordError(f"{field} is no list")
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRecordError(f"a text is {str(value)[:40]}, expected a string")
    return clean(value)


def _call(record: object) -> str:
    """Return a tool call as the name and the arguments alone: ids are drawn anew by each server."""
    if isinstance(record, str):
        return clean(record)
    if not isinstance(record, Mapping):
        raise BadRecordError("a tool call is not an object")
    function = record.get("function", record)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRecordError("a tool call has no function name")
    arguments = function.get("arguments", function.get("input", function.get("kwargs", {})))
    written = clean(arguments) if isinstance(arguments, str) else compact(arguments)
    return f'{{"name": {compact(function["name"])}, "arguments": {written}}}'


def _of_content(role: str, content: object) -> Message:
    if content is None or isinstance(content, str):
        return Message(role, _text(content))
    if not isinstance(content, Sequence):
        raise BadRecordError(f"content is {str(content)[:40]}, expected text or a list of parts")
    texts, reasoning, calls = [], [], []
    for part in content:
        if isinstance(part, str):
            texts.append(clean(part))
            continue
        if not isinstance(part, Mapping):
            raise BadRecordError("a part of a content is not an object")
        kind = part.get("type", "text")
        value = next((part[f] for f in ("text", "value", "content", "thinking") if f in part), None)
        if kind in _TEXT_PARTS:
            texts.append(_text(value))
        elif kind in _REASONING_PARTS:
            reasoning.append(_text(value))
        elif kind in _CALL_PARTS:
            calls.append(_call(part if value is None else value))
        elif kind in _RESULT_PARTS:
            texts.append(value if isinstance(value, str) else compact(value))
        else:
            # An image, a sound, a file: equal ones stay equal, and how many tokens it makes is not known.
            digest = hashlib.sha256(compact(part).encode("utf-8", "replace")).hexdigest()[:16]
            texts.append(f"[{kind} {digest}]")
    return Message(role, "".join(texts), "\n\n".join(reasoning), tuple(calls))
