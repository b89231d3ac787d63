"""One small valid file of every format, and how to load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.trace import Trace

DRAWN = ("arrivals=poisson", "session_rate=0.5")
ASK = "Please tell me at some length what a prefix cache is and why blocks of it are evicted."
TELL = "A prefix cache keeps the keys and values of tokens that requests have in common, from the first token on."
MORE = "And what is a leaf of it, and why does only a leaf go first when room is needed?"


class Sample(NamedTuple):
    """A file's name and content, and the options besides the path."""

    file: str
    content: str
    overrides: tuple[str, ...] = ()
    requests: int = 2
    sessions: int = 1


def lines(*records: Any) -> str:
    return "\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n"


def said(
    *texts: str, names: tuple[str, str] = ("user", "assistant"), role: str = "role", content: str = "content"
) -> Any:
    """Messages of two who take turns."""
    return [{role: names[n % 2], content: text} for n, text in enumerate(texts)]


CHAT = said(ASK, TELL, MORE, TELL[::-1])
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "leaf"}'}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "looks up a word", "parameters": {}}}
AGENT = [
    {"role": "system", "content": "You look words up before you answer, always, with the tool that you have."},
    {"role": "user", "content": ASK},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": TELL},
    {"role": "assistant", "content": TELL},
]
_TREE = {
    "message_tree_id": "t",
    "prompt": {
        "message_id": "a",
        "role": "prompter",
        "text": ASK,
        "replies": [
            {"message_id": "b", "role": "assistant", "text": TELL, "replies": []},
            {"message_id": "c", "role": "assistant", "text": MORE, "replies": []},
        ],
    },
}
_BFCL = {
    "id": "multi_turn_base_0",
    "question": [[{"role": "user", "content": ASK}], [{"role": "user", "content": MORE}]],
    "involved_classes": ["MathAPI"],
}

SAMPLES = {
    "sharegpt": Sample(
        "s.json",
        json.dumps(
            [
                {
                    "id": "a_0",
                    "conversations": said(
                        *(m["content"] for m in CHAT), names=("human", "gpt"), role="from", content="value"
                    ),
                }
            ]
        ),
        DRAWN,
    ),
    "lmsys": Sample("l.jsonl", lines({"conversation_id": "x", "conversation": CHAT}), DRAWN),
    "chatbot_arena": Sample(
        "a.jsonl",
        lines({"question_id": "q", "conversation_a": CHAT[:2], "conversation_b": CHAT[:2], "tstamp": 1682351591.1}),
        sessions=2,
    ),
    "openai_messages": Sample(
        "o.jsonl",
        lines(
            {
                "created": 1700000000,
                "session_id": "s",
                "tools": [TOOL],
                "messages": AGENT[:2],
                "response": {"choices": [{"message": AGENT[2]}]},
            },
            {
                "created": 1700000009,
                "session_id": "s",
                "tools": [TOOL],
                "messages": AGENT[:4],
                "response": {"choices": [{"message": AGENT[4]}]},
            },
        ),
    ),
    "openassistant": Sample("t.jsonl", lines(_TREE), DRAWN, sessions=2),
    "mt_bench_101": Sample(
        "m.jsonl",
        lines({"task": "GR", "id": 1, "history": [{"user": ASK, "bot": TELL}, {"user": MORE, "bot": TELL}]}),
        DRAWN,
    ),
    "bfcl": Sample("BFCL_v4_multi_turn_base.json", lines(_BFCL), DRAWN),
    "llama_factory": Sample(
        "f.jsonl",
        lines(
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "value": ASK}]},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "reasoning", "value": MORE},
                            {"type": "tool_call", "value": '{"name": "look_up", "arguments": {}}'},
                        ],
                    },
                    {"role": "tool", "content": [{"type": "text", "value": TELL}]},
                    {"role": "assistant", "content": [{"type": "text", "value": TELL}]},
                ],
                "tools": json.dumps([TOOL]),
            }
        ),
        DRAWN,
    ),
    "lmcache_agent": Sample(
        "c.jsonl",
        lines(
            {"timestamp": 1760428436442742, "input": ASK, "output": TELL, "session_id": "x"},
            {"timestamp": 1760428438776726, "input": ASK + TELL + MORE, "output": TELL, "session_id": "x"},
        ),
    ),
    "tau_bench": Sample("b.jsonl", lines({"task_id": 0, "trial": 0, "traj": AGENT}), DRAWN),
    "aiperf": Sample(
        "d.jsonl",
        lines(
            {
                "session_id": "s",
                "input_length": 1100,
                "output_length": 600,
                "hash_ids": [0, 1, 2],
                "timestamp": 0,
                "group_id": 0,
            },
            {"session_id": "s", "input_length": 500, "output_length": 10, "hash_ids": [7], "delay": 2450.3},
        ),
    ),
    "azure": Sample(
        "z.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,48,10\r\n2023-11-16 18:17:04.0319600,31,8\r\n",
        sessions=0,
    ),
    "burstgpt": Sample(
        "g.csv",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,u,1,ChatGPT,40,30,70,Conversation log\n45,u,1,ChatGPT,90,30,120,Conversation log\n",
    ),
    "mooncake": Sample(
        "w.jsonl",
        lines(
            {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
            {"timestamp": 1500, "input_length": 1024, "output_length": 5, "hash_ids": [0, 7]},
        ),
        sessions=0,
    ),
    "bailian": Sample(
        "q.jsonl",
        lines(
            {
                "chat_id": 1,
                "parent_chat_id": -1,
                "timestamp": 61.1,
                "input_length": 40,
                "output_length": 5,
                "type": "text",
                "turn": 1,
                "hash_ids": [5, 6, 7],
            },
            {
                "chat_id": 2,
                "parent_chat_id": 1,
                "timestamp": 62.5,
                "input_length": 64,
                "output_length": 5,
                "type": "text",
                "turn": 2,
                "hash_ids": [5, 6, 8, 6],
            },
        ),
    ),
}


def load(name: str, path: Path, *overrides: str, text: str | bytes | None = None, file: str = "") -> Trace:
    """Load a sample, or another text, with its own options and `overrides`."""
    sample = SAMPLES[name]
    target = path / (file or sample.file)
    content = sample.content if text is None else text
    target.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return make(name, f"path='{target}'", *sample.overrides, *overrides)
