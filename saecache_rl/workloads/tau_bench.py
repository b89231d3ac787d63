"""tau-bench: runs of a tool agent, ``{"task_id", "trial", "traj": [{"role", "content", "tool_calls"?}]}``; no times.

The tools are not in the runs but in tau-bench's source, from which they are read without running it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from saecache_rl.errors import InputError
from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, messages_of, replies_of, tools_of
from saecache_rl.workloads.options import choice
from saecache_rl.workloads.records import pick
from saecache_rl.workloads.sources import JSON_SUFFIXES, Record, Text, open_sources
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"task_id", "trial", "traj": [{"role", "content", "tool_calls"?}]}, a JSON list of them or one a line',
    "get historical_trajectories/*.json of github.com/sierra-research/tau-bench (plain or .gz)",
)
DOMAINS = ("airline", "retail")
_TOOLS_REMEDY = "get github.com/sierra-research/tau-bench (the folder, or a tar archive of it)"


def _definition(source: bytes, place: str) -> dict[str, Any] | None:
    """Return what a tool's `get_info` returns, which is written out as a literal; None where there is none."""
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "get_info":
                returned = next(n for n in ast.walk(node) if isinstance(n, ast.Return))
                assert returned.value is not None
                value = ast.literal_eval(returned.value)
                return value if isinstance(value, dict) else None
    except (SyntaxError, ValueError, StopIteration, AssertionError, RecursionError, MemoryError) as error:
        raise InputError(f"{place}: its tool definition can't be read ({str(error)[:60]}); {_TOOLS_REMEDY}") from None
    return None


def read_tools(path: object, domain: str) -> str:
    """Return the tool definitions of a domain as JSON text, in the order of the files' names.

    Raises:
        InputError: there are none.
    """
    files = open_sources(path, (".py",), _TOOLS_REMEDY, lambda name: f"envs/{domain}/tools/" in name)
    found = [definition for file in files if (definition := _definition(file.content, file.name))]
    if not found:
        raise InputError(f"workload.tools={path}: no tool definition in it; {_TOOLS_REMEDY}")
    return tools_of(found)


def load(**options: Any) -> Trace:
    """Load a file or a folder of them; conf/workload/tau_bench.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    source, given = options.pop("tools"), options.pop("domain")
    domain = choice("workload.domain", given, DOMAINS)
    tools = "" if source is None else read_tools(source, domain)

    def dialogues(record: Record) -> Iterable[Dialogue]:
        messages = messages_of(pick(record.fields, "traj", "messages"))
        key = f"{pick(record.fields, 'task_id')}-{record.fields.get('trial', 0)}"
        yield Dialogue(record.place, tuple(messages), replies_of(messages), tools, key=key)

    note = "not in the prompts: workload.tools names no source" if source is None else f"{domain}, from {source}"
    return load_dialogues(options, TEXT, dialogues, suffixes=JSON_SUFFIXES, notes=lambda: {"tools": note})
