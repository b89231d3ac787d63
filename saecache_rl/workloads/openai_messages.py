"""A log of OpenAI chat-completion requests, one a line: ``{"messages", "tools", …}`` and, where logged, the response.

The request may stand in `request` or `body` (as in a batch file), the response in `response`, `choices` or `output`.
Each line is one request. Most logs are cumulative: a line holds the whole conversation so far. Where lines hold only
what is new (incremental), a session's lines are put together. Which of the two is seen in the data, where sessions have
names, or asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from saecache_rl.errors import InputError
from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, Message, message_of, messages_of, tools_of
from saecache_rl.workloads.moments import UNITS, find_unit, moment
from saecache_rl.workloads.options import choice
from saecache_rl.workloads.records import BadRecordError, count, pick
from saecache_rl.workloads.sources import Record, Text
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"messages": [{"role", "content"}], "tools"?, "response"?, "timestamp"?, "session_id"?} a line',
    "log the body of each POST /v1/chat/completions as one line of JSON, with the time and the client's session",
)
TURNS = ("cumulative", "incremental")
_TIME = ("timestamp", "created", "created_time", "created_at", "time", "request_time", "start_time", "arrival_time")
_SESSION = ("session_id", "conversation_id", "session", "thread_id", "chat_id")
_SAME = 0.5  # of the lines that follow another of their session must extend it for a log to be cumulative


def _first(places: Iterable[Mapping[str, Any]], names: Iterable[str]) -> Any:
    known = list(names)
    return next((p[n] for p in places for n in known if p.get(n) is not None), None)


def _inside(fields: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((fields[n] for n in names if isinstance(fields.get(n), Mapping)), {})
    return found


def _reply(fields: Mapping[str, Any]) -> tuple[Message | None, int | None, Mapping[str, Any]]:
    """Return the reply, the tokens that the server counted for it, and the response that told them."""
    response: Mapping[str, Any] = _inside(fields, "response", "completion", "output")
    response = _inside(response, "body") or response or fields
    usage = _inside(response, "usage") or _inside(fields, "usage")
    told = None
    if usage.get("completion_tokens", usage.get("output_tokens")) is not None:
        told = count(usage, "completion_tokens", "output_tokens")
    choices = response.get("choices")
    message: Any = None
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
    elif isinstance(response.get("role"), str):
        message = response
    else:
        text = next((fields[n] for n in ("response", "output", "completion") if isinstance(fields.get(n), str)), None)
        message = None if text is None else {"content": text}
    return (None if message is None else message_of({"role": "assistant", **message})), told, response


def dialogues(record: Record) -> Iterable[Dialogue]:
    """Read one request."""
    fields = record.fields
    request = _inside(fields, "request", "body") or fields
    messages = messages_of(pick(request, "messages"))
    if not messages:
        raise BadRecordError("messages is empty")
    reply, told, response = _reply(fields)
    if reply is None and messages[-1].role == "assistant":
        reply = messages.pop()  # logged as in a fine-tuning file: the last message is the reply
        if not messages:
            raise BadRecordError("messages holds nothing but a reply")
    places = [fields, request, _inside(request, "metadata"), _inside(fields, "metadata")]
    at = _first([*places, response], _TIME)
    key = _first(places, _SESSION)
    if key is not None and not isinstance(key, str | int):
        raise BadRecordError("the session's id is neither text nor a number")
    known = [*messages, reply] if reply is not None else messages
    yield Dialogue(
        place=record.place,
        messages=tuple(known),
        replies=(len(messages),),
        tools=tools_of(request.get("tools", request.get("functions"))),
        key=None if key is None else str(key),
        part=key is not None,
        seconds=None if at is None else (moment(at),),
        output_tokens=(told,),
        anonymous=key is None,
    )


def _prompt(dialogue: Dialogue) -> tuple[Message, ...]:
    return dialogue.messages[: dialogue.replies[0]]


def _is_cumulative(by_key: Mapping[str, list[Dialogue]], given: object, source: str) -> tuple[bool, str]:
    """Return whether lines hold whole conversations, and how that is known.

    Raises:
        InputError: the data doesn't tell.
    """
    if given is not None:
        return choice("workload.turns", given, TURNS) == "cumulative", "given"
    pairs = [(a, b) for own in by_key.values() for a, b in pairwise(own)]
    extending = sum(_prompt(b)[: len(_prompt(a))] == _prompt(a) for a, b in pairs)
    if not pairs or extending >= _SAME * len(pairs):
        return True, f"seen: {extending} of {len(pairs)} further lines of a session extend the one before"
    raise InputError(
        f"{source}: of {len(pairs)} further lines of a session {extending} begin with what the line before held: say "
        "whether a line holds the whole conversation (workload.turns=cumulative) or only what is new "
        "(workload.turns=incremental)"
    )


def _put_together(own: list[Dialogue]) -> Dialogue:
    messages: list[Message] = []
    replies = []
    for dialogue in own:
        messages += _prompt(dialogue)
        replies.append(len(messages))
        messages += dialogue.messages[dialogue.replies[0] :] or [Message("assistant", "")]
    return Dialogue(
        place=own[0].place,
        messages=tuple(messages),
        replies=tuple(replies),
        tools=own[0].tools,
        key=own[0].key,
        seconds=tuple(d.seconds[0] for d in own if d.seconds) if all(d.seconds for d in own) else None,
        output_tokens=tuple((d.output_tokens or (None,))[0] for d in own),
    )


def load(**options: Any) -> Trace:
    """Load a file or a folder of them; conf/workload/openai_messages.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    turns, unit_given = options.pop("turns"), options.pop("time_unit")
    said: dict[str, str] = {}

    def gather(found: Iterator[Dialogue]) -> Iterable[Dialogue]:
        whole = list(found)
        source = str(options["path"])
        timed = [d for d in whole if d.seconds]
        if timed and options["arrivals"] == "recorded":
            unit, how = find_unit([d.seconds[0] for d in timed if d.seconds], unit_given, source)
        else:
            unit, how = "seconds", "not used"
        said["time_unit"] = f"{unit} ({how})"
        whole = [replace(d, seconds=(d.seconds[0] * UNITS[unit],)) if d.seconds else d for d in whole]
        by_key: dict[str, list[Dialogue]] = {}
        for dialogue in whole:
            if dialogue.key is not None:
                by_key.setdefault(dialogue.key, []).append(dialogue)
        for own in by_key.values():
            if all(d.seconds for d in own):
                own.sort(key=lambda d: (d.seconds or (0.0,))[0])
        cumulative, known = _is_cumulative(by_key, turns, source)
        said["turns"] = f"{'cumulative' if cumulative else 'incremental'} ({known})"
        if cumulative:
            return whole
        return [d for d in whole if d.key is None] + [_put_together(own) for own in by_key.values()]

    return load_dialogues(options, TEXT, dialogues, recorded=True, gather=gather, notes=lambda: said)
