"""The JSONL traces of Mooncake (kvcache-ai/Mooncake, FAST'25): arrivals in milliseconds, lengths, ids of prompt blocks.

The format names neither sessions nor the blocks of replies. Ids are chained, so one id under two predecessors is two
identities.
"""

from __future__ import annotations

from typing import Any

from saecache_rl.workloads.hashed_requests import LARGEST_ID, HashedRequest, check_ids, load_requests
from saecache_rl.workloads.records import block_ids, count, seconds
from saecache_rl.workloads.sources import Record, Text, records_of
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids of its blocks]} a line',
    "get conversation_trace.jsonl from FAST25-release/traces of github.com/kvcache-ai/Mooncake (plain or .gz)",
)


def request_of(record: Record, block_size: int) -> HashedRequest:
    """Read one request."""
    fields = record.fields
    prompt = count(fields, "input_length", "input_len", "prompt_tokens", "input_tokens", least=1)
    ids = block_ids(fields, "hash_ids", "block_hashes", "hashes", largest=LARGEST_ID)
    return HashedRequest(
        arrival=seconds(fields, "timestamp", "arrival_time_ms", "timestamp_ms", scale=1000),
        prompt_tokens=prompt,
        output_tokens=count(fields, "output_length", "output_len", "completion_tokens", "output_tokens"),
        ids=check_ids(ids, prompt, block_size),
    )


def load(**options: Any) -> Trace:
    """Load a trace; conf/workload/mooncake.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    return load_requests(options, TEXT, records_of, request_of)
