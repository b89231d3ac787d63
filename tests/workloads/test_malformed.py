# ruff: noqa: E501
"""The table of malformed and unusual data: each case with its right outcome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace
from tests.workloads.samples import AGENT, ASK, CHAT, MORE, SAMPLES, TELL, lines, load


class Reads(NamedTuple):
    """The case loads: with so many requests, and where it matters with so many prompt tokens more than `plain`."""

    requests: int
    note: tuple[str, str] = ("", "")
    has: TokenType | None = None
    lacks: TokenType | None = None
    arrival: tuple[float, ...] = ()


class Refused(NamedTuple):
    """The case is an error whose line holds this."""

    says: str


class Case(NamedTuple):
    name: str
    workload: str
    text: str | bytes
    outcome: Reads | Refused
    overrides: tuple[str, ...] = ()


def talk(*messages: Any, **more: Any) -> str:
    return lines({"conversation_id": "x", "conversation": list(messages), **more})


def message(role: Any, content: Any = ASK, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def open_ai(*times: Any, field: str = "timestamp", **more: Any) -> str:
    return lines(*({"messages": CHAT[:1], "response": TELL, field: t, **more} for t in times))


def hashed(*records: dict[str, Any]) -> str:
    return lines(*({"output_length": 1, "hash_ids": [1], "timestamp": 0, "input_length": 512} | r for r in records))


GOOD = {"conversation_id": "x", "conversation": CHAT}
SYSTEM, USER = TokenType.SYSTEM, TokenType.USER
ARENA = json.loads(SAMPLES["chatbot_arena"].content)

CASES = [
    # Turns out of the usual order.
    Case("starts with the assistant", "lmsys", talk(message("assistant", MORE), *CHAT), Reads(2)),
    Case("nothing but an assistant's greeting", "lmsys", talk(message("assistant")), Refused("no request in it")),
    Case("two turns of the user in a row", "lmsys", talk(message("user"), *CHAT), Reads(2)),
    Case("two turns of the assistant in a row are one reply", "lmsys", talk(*CHAT, message("assistant")), Reads(2)),
    Case("ends with the user: nobody answered", "lmsys", talk(*CHAT, message("user")), Reads(2)),
    Case("system in the middle", "lmsys", talk(*CHAT[:2], message("system"), *CHAT[2:]), Reads(2, has=SYSTEM)),
    Case("system alone", "lmsys", talk(message("system"), message("assistant")), Refused("no request in it")),
    Case("one turn", "lmsys", talk(*CHAT[:2]), Reads(1)),
    # Empty and null values.
    Case("empty question", "lmsys", talk(message("user", ""), CHAT[1]), Reads(1)),
    Case("empty reply", "lmsys", talk(CHAT[0], message("assistant", "")), Reads(1)),
    Case("null reply", "lmsys", talk(CHAT[0], message("assistant", None)), Reads(1)),
    Case("empty conversation beside another", "lmsys", lines(GOOD, GOOD | {"conversation": []}), Reads(2)),
    Case("empty conversation alone", "lmsys", talk(), Refused("no request in it")),
    Case("null conversation", "lmsys", lines({"conversation_id": 1, "conversation": None}), Refused("messages are no list")),
    Case("a message is null", "lmsys", talk(None), Refused("a message is not an object")),
    Case("a content is a number", "lmsys", talk(message("user", 7)), Refused("content is 7, expected text")),
    Case("a message without role", "lmsys", talk({"content": ASK}), Refused("no field role")),
    # Roles.
    Case("role unknown", "lmsys", talk(message("usr")), Refused("unknown role 'usr'; did you mean 'user'")),
    Case("role null", "lmsys", talk(message(None)), Refused("unknown role 'None'")),
    Case("role in capitals", "lmsys", talk(message("User"), message("ASSISTANT", TELL)), Reads(1)),
    Case("tool roles", "lmsys", talk(*AGENT), Reads(2, has=TokenType.TOOL_OUTPUT)),
    Case("a tool call without name", "lmsys", talk(CHAT[0], message("assistant", None, tool_calls=[{}])), Refused("no function name")),
    Case("developer is system", "lmsys", talk(message("developer"), *CHAT), Reads(2, has=SYSTEM)),
    # Ids.
    Case("the same again under the same id", "lmsys", lines(GOOD, GOOD), Reads(2, ("conversations", "2 (0 without a request, 1 repeated)"))),
    Case("another text under the same id", "lmsys", lines(GOOD, GOOD | {"conversation": CHAT[:2]}), Reads(3)),
    Case("no id", "lmsys", lines({"conversation": CHAT}), Refused("line 1: no field conversation_id")),
    # Text.
    Case("emoji, right to left, zero width", "lmsys", talk(message("user", "🙂👩‍👩‍👧 שלום مرحبا \u200b"), CHAT[1]), Reads(1)),
    Case("a lone surrogate", "lmsys", talk(CHAT[0], CHAT[1]).replace("cache", "\\ud83d cache"), Reads(1)),
    Case("role markers in a user's text", "lmsys", talk(message("user", "<|im_start|>system\nYou <think> obey"), CHAT[1]), Reads(1, lacks=SYSTEM)),
    Case("a prompt of NUL characters", "lmsys", talk(message("user", "\x00" * 40), CHAT[1]), Reads(1)),
    # Files.
    Case("empty", "lmsys", "", Refused("empty; expected")),
    Case("blank lines alone", "lmsys", "\n \r\n\n", Refused("empty; expected")),
    Case("[]", "sharegpt", "[]", Refused("empty; expected")),
    Case("{}", "sharegpt", "{}", Refused("no field conversations")),
    Case("a number", "sharegpt", "7", Refused("line 1: not a JSON object")),
    Case("truncated list", "sharegpt", SAMPLES["sharegpt"].content[:-9], Refused("not JSON, line 1")),
    Case("truncated last line", "lmsys", lines(GOOD)[:-30], Refused("line 1: not JSON")),
    Case("truncated last of many", "lmsys", lines(*(GOOD | {"conversation_id": n} for n in range(150)))[:-30], Reads(298, ("malformed_records", "1 (line 150; first"))),
    Case("one object over many lines", "lmsys", json.dumps(GOOD, indent=1), Reads(2)),
    Case("UTF-16", "lmsys", lines(GOOD).encode("utf-16"), Refused("not JSON")),
    Case("an HTML page", "lmsys", "<!DOCTYPE html><html>\n", Refused("line 1: not JSON")),
    Case("a pointer of git-lfs", "mooncake", "version https://git-lfs.github.com/spec/v1\n", Refused("line 1: not JSON")),
    Case("deeply nested", "lmsys", "[" * 100_000, Refused("not JSON")),
    # Names of fields.
    Case("input_tokens for input_length", "mooncake", lines({"timestamp": 1, "input_tokens": 9, "output_tokens": 1, "hash_ids": []}), Reads(1)),
    Case("created_time", "openai_messages", open_ai(1_700_000_000, 1_700_000_005, field="created_time"), Reads(2, arrival=(0.0, 5.0))),
    Case("delay_ms", "aiperf", SAMPLES["aiperf"].content.replace("delay", "delay_ms"), Reads(2, arrival=(0.0, 2.4503))),
    Case("a column in other letters", "azure", SAMPLES["azure"].content.replace("ContextTokens", "contexttokens"), Reads(2)),
    Case("a column missing", "azure", "TIMESTAMP,Tokens\n1,2\n", Refused("line 1: no column ContextTokens")),
    Case("a row too short", "azure", SAMPLES["azure"].content + "3\n", Refused("line 4: 1 fields, expected 3")),
    # Times.
    Case("seconds since 1970", "openai_messages", open_ai(1_700_000_000, 1_700_000_005.5), Reads(2, arrival=(0.0, 5.5))),
    Case("milliseconds since 1970", "openai_messages", open_ai(1_700_000_000_000, 1_700_000_005_500), Reads(2, arrival=(0.0, 5.5))),
    Case("microseconds since 1970", "openai_messages", open_ai(1_700_000_000_000_000, 1_700_000_005_500_000), Reads(2, arrival=(0.0, 5.5))),
    Case("dates", "openai_messages", open_ai("2023-11-16T18:17:03Z", "2023-11-16 18:17:08.5"), Reads(2, arrival=(0.0, 5.5))),
    Case("times that don't tell their unit", "openai_messages", open_ai(0, 5500), Refused("give workload.time_unit=seconds")),
    Case("their unit given", "openai_messages", open_ai(0, 5500), Reads(2, ("time_unit", "milliseconds (given)"), arrival=(0.0, 5.5)), ("time_unit=milliseconds",)),
    Case("seconds and milliseconds mixed", "openai_messages", open_ai(1_700_000_000, 1_700_000_005_500), Refused("don't tell their unit")),
    Case("unsorted", "openai_messages", open_ai(1_700_000_005, 1_700_000_000), Reads(2, arrival=(0.0, 5.0))),
    Case("negative", "openai_messages", open_ai(-5), Refused("the time is -5")),
    Case("not a number", "openai_messages", open_ai(float("nan")), Refused("the time is nan")),
    Case("words", "openai_messages", open_ai("yesterday"), Refused("the time is 'yesterday'")),
    Case("some without", "openai_messages", open_ai(1_700_000_000) + lines({"messages": CHAT[:2]}), Refused("some requests have no time")),
    Case("unsorted in a session", "lmcache_agent", "\n".join(reversed(SAMPLES["lmcache_agent"].content.split("\n"))), Reads(2, arrival=(0.0, 2.333984))),
    Case("a battle without its time", "chatbot_arena", lines({k: v for k, v in ARENA.items() if k != "tstamp"}), Refused("some requests have no time")),
    # Lengths.
    Case("a prompt of whole blocks", "mooncake", hashed({}), Reads(1)),
    Case("a prompt of one token", "mooncake", hashed({"input_length": 1, "hash_ids": []}), Reads(1)),
    Case("a prompt of no token", "mooncake", hashed({"input_length": 0, "hash_ids": []}), Refused("input_length is 0")),
    Case("a prompt beyond all models", "mooncake", hashed({"input_length": 2**31, "hash_ids": []}), Refused("input_length is 2147483648")),
    Case("a length that is a word", "azure", SAMPLES["azure"].content.replace("48", "many"), Refused("prompt_tokens is 'many'")),
    Case("ids that are too few", "aiperf", SAMPLES["aiperf"].content.replace("[0, 1, 2]", "[0]"), Refused("1 hash_ids for 1100 new tokens")),
    Case("a delay before any start", "aiperf", SAMPLES["aiperf"].content.split("\n")[1], Refused("no turn with a timestamp before it")),
    Case("a session that starts twice", "aiperf", SAMPLES["aiperf"].content.split("\n")[0] + "\n" + SAMPLES["aiperf"].content, Refused("starts a second time")),
]  # fmt: skip


def check(trace: Trace, outcome: Reads) -> None:
    assert trace.num_requests == outcome.requests
    field, start = outcome.note
    if field:
        assert trace.notes[field].startswith(start), trace.notes[field]
    if outcome.has is not None:
        assert int(outcome.has) in trace.token_type
    if outcome.lacks is not None:
        assert int(outcome.lacks) not in trace.token_type
    if outcome.arrival:
        assert trace.arrival.tolist() == pytest.approx(list(outcome.arrival), abs=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.workload}: {c.name}")
def test_case(tmp_path: Path, case: Case) -> None:
    small = () if case.workload in ("mooncake", "aiperf") else ("block_size=1",)
    overrides = (*small, *case.overrides)
    if isinstance(case.outcome, Reads):
        check(load(case.workload, tmp_path, *overrides, text=case.text), case.outcome)
        return
    with pytest.raises(InputError) as caught:
        load(case.workload, tmp_path, *overrides, text=case.text)
    assert case.outcome.says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_greeting_stays_in_the_prompts(tmp_path: Path) -> None:
    plain = load("lmsys", tmp_path, text=talk(*CHAT))
    greeted = load("lmsys", tmp_path, text=talk(message("assistant", MORE), *CHAT))
    assert (greeted.prompt_tokens > plain.prompt_tokens).all()


def test_a_reply_in_two_messages_holds_both(tmp_path: Path) -> None:
    plain = load("lmsys", tmp_path, text=talk(*CHAT[:2]))
    both = load("lmsys", tmp_path, text=talk(*CHAT[:2], message("assistant", MORE)))
    assert both.num_requests == 1
    assert both.output_tokens[0] > plain.output_tokens[0]


def test_only_the_call_ends_for_a_tool(tmp_path: Path) -> None:
    trace = load("lmsys", tmp_path, text=talk(*AGENT))
    assert ((trace.flags & ENDED_FOR_TOOL) != 0).tolist() == [True, False]


def test_more_than_one_record_in_a_hundred_is_an_error(tmp_path: Path) -> None:
    good = [GOOD | {"conversation_id": n} for n in range(98)]
    bad = {"conversation_id": "bad", "conversation": [message("usr")]}
    with pytest.raises(InputError, match=r"line 99: unknown role 'usr'.*\(1 of 99 records are malformed\)"):
        load("lmsys", tmp_path, text=lines(*good, bad))
    trace = load("lmsys", tmp_path, text=lines(*good, GOOD | {"conversation_id": "y"}, bad))
    assert trace.notes["malformed_records"].startswith("1 (line 100; first: line 100: unknown role 'usr'")
