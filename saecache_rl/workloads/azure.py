"""Azure's LLM inference traces (Azure/AzurePublicDataset): times and token counts, ``TIMESTAMP,ContextTokens,…``.

Nothing in the data says what prompts share, so they share nothing: of use for arrivals and lengths, not for hits.
"""

from __future__ import annotations

from typing import Any

from saecache_rl.workloads.hashed_requests import HashedRequest, load_requests, unshared
from saecache_rl.workloads.moments import moment
from saecache_rl.workloads.records import text_count
from saecache_rl.workloads.sources import Record, Text, csv_rows
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    "TIMESTAMP,ContextTokens,GeneratedTokens, then a row a request",
    "get data/AzureLLMInferenceTrace_*.csv of github.com/Azure/AzurePublicDataset (plain or .gz)",
)
COLUMNS = {
    "arrival": ("TIMESTAMP",),
    "prompt_tokens": ("ContextTokens", "input_tokens", "prompt_tokens"),
    "output_tokens": ("GeneratedTokens", "output_tokens", "completion_tokens"),
}


def load(**options: Any) -> Trace:
    """Load a trace; conf/workload/azure.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    found = 0

    def request_of(record: Record, block_size: int) -> HashedRequest:
        nonlocal found
        found += 1
        prompt = text_count(record.fields, "prompt_tokens", least=1)
        return HashedRequest(
            arrival=moment(record.fields["arrival"]),
            prompt_tokens=prompt,
            output_tokens=text_count(record.fields, "output_tokens"),
            ids=unshared(found, prompt, block_size),
        )

    return load_requests(
        options,
        TEXT,
        lambda source, malformed: csv_rows(source, COLUMNS, malformed),
        request_of,
        notes=lambda: {"sharing": "none: the data does not say what prompts share"},
    )
