"""Qwen-Bailian's traces (alibaba-edu/qwen-bailian-usagetraces-anon): arrivals in seconds, ids of 16-token blocks.

``chat_id`` and ``parent_chat_id`` name the sessions. Raw ids are not unique to a prefix, so they are chained.
"""

from __future__ import annotations

from typing import Any

from saecache_rl.workloads.hashed_requests import LARGEST_ID, HashedRequest, check_ids, load_requests
from saecache_rl.workloads.records import BadRecordError, block_ids, count, pick, seconds
from saecache_rl.workloads.sources import Record, Text, records_of
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"chat_id", "parent_chat_id", "timestamp": s, "input_length", "output_length", "hash_ids": [ids]} a line',
    "get a qwen_*_blksz_16.jsonl of github.com/alibaba-edu/qwen-bailian-usagetraces-anon (plain or .gz)",
)


def request_of(record: Record, block_size: int) -> HashedRequest:
    """Read one request."""
    fields = record.fields
    prompt = count(fields, "input_length", "input_tokens", least=1)
    name, parent = pick(fields, "chat_id"), fields.get("parent_chat_id", -1)
    if isinstance(name, bool | float | list | dict) or name is None:
        raise BadRecordError(f"chat_id is {str(name)[:40]}, expected a number or a name")
    ids = block_ids(fields, "hash_ids", largest=LARGEST_ID)
    return HashedRequest(
        arrival=seconds(fields, "timestamp"),
        prompt_tokens=prompt,
        output_tokens=count(fields, "output_length", "output_tokens"),
        ids=check_ids(ids, prompt, block_size),
        name=str(name),
        parent=None if parent in (-1, "-1", None) else str(parent),
    )


def load(**options: Any) -> Trace:
    """Load a trace; conf/workload/bailian.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    return load_requests(options, TEXT, records_of, request_of)
