"""The JSONL traces of Mooncake (kvcache-ai/Mooncake, FAST'25): arrivals in milliseconds, lengths, ids of prompt blocks.

The format names neither sessions nor the blocks of replies. Ids are chained here, so one id under two predecessors is
two identities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.assemble import RawRequests, assemble
from saecache_rl.workloads.options import COUNT, POSITIVE, Bounds, choice, number, whole
from saecache_rl.workloads.records import (
    BadRecordError,
    Malformed,
    block_ids,
    count,
    find,
    lines,
    parse,
    read_bytes,
    seconds,
)
from saecache_rl.workloads.trace import Trace

REMEDY = "get conversation_trace.jsonl from FAST25-release/traces of github.com/kvcache-ai/Mooncake (plain or .gz)"
EXPECTED = '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids of its blocks]} a line'
_LARGEST_ID = 2**62


class _Request(NamedTuple):
    arrival: float
    prompt_tokens: int
    output_tokens: int
    ids: npt.NDArray[np.int64]


def _request(line: bytes, block_size: int) -> _Request:
    record = parse(line)
    arrival = seconds(record, "timestamp", "arrival_time_ms", "timestamp_ms", scale=1000)
    prompt = count(record, "input_length", "input_len", "prompt_tokens", "input_tokens", least=1)
    output = count(record, "output_length", "output_len", "completion_tokens", "output_tokens")
    ids = block_ids(record, "hash_ids", "block_hashes", "hashes", largest=_LARGEST_ID)
    full = prompt // block_size
    if len(ids) not in (full, -(-prompt // block_size)):
        raise BadRecordError(
            f"{len(ids)} hash_ids for {prompt} tokens in blocks of {block_size}, expected {full} full ones"
        )
    return _Request(arrival, prompt, output, ids[:full])


def load(
    *,
    name: str,
    path: str | None,
    requests: int | None,
    block_size: int,
    arrivals: str,
    session_rate: float | None,
    seed: int,
    generated: str,
    max_prompt_tokens: int | None,
) -> Trace:
    """Load a trace.

    Args:
        name: of the workload.
        path: the file, plain or gzip.
        requests: how many to keep, the earliest; None: all.
        block_size: tokens that one id stands for; 512 in Mooncake's files.
        arrivals: "recorded", or "poisson": in the recorded order, at `session_rate` requests a second.
        session_rate: for "poisson"; each request counts as a session, as the data names none.
        seed: for "poisson".
        generated: "none", or "unique": replies take blocks that nothing will match.
        max_prompt_tokens: longer prompts are left out; None: no limit.

    Raises:
        InputError: an option is impossible, or the file is absent or not in the format.
    """
    size = whole("workload.block_size", block_size, Bounds(1, 2**20, whole=True))
    wanted = None if requests is None else whole("workload.requests", requests)
    limit = None if max_prompt_tokens is None else whole("workload.max_prompt_tokens", max_prompt_tokens, COUNT)
    seed = whole("workload.seed", seed, Bounds(0, 2**63 - 1, whole=True))
    choice("workload.arrivals", arrivals, ("recorded", "poisson"))
    if generated == "known":
        raise InputError(
            "workload.generated=known: the format does not name the blocks of replies; choose none or unique"
        )
    choice("workload.generated", generated, ("none", "unique"))
    if arrivals == "poisson" and session_rate is None:
        raise InputError("workload.session_rate=null: workload.arrivals=poisson needs it, in requests a second")
    rate = None if session_rate is None else number("workload.session_rate", session_rate, POSITIVE)

    file = find(path, REMEDY)
    malformed = Malformed(str(file), EXPECTED, REMEDY)
    found: list[_Request] = []
    for line_number, line in lines(read_bytes(file, REMEDY)):
        malformed.records += 1
        try:
            found.append(_request(line, size))
        except BadRecordError as problem:
            malformed.add(f"line {line_number}", problem)
    malformed.check()
    arrival = np.array([r.arrival for r in found])
    falls = int(np.count_nonzero(np.diff(arrival) < 0))
    order = np.argsort(arrival, kind="stable")
    too_long = 0
    if limit is not None:
        kept = [i for i in order if found[i].prompt_tokens <= limit]
        too_long = len(order) - len(kept)
        order = np.array(kept, np.int64)
    order = order[:wanted]
    if not len(order):
        raise InputError(f"workload.max_prompt_tokens={limit}: no prompt of {file} is that short; raise it")
    chosen = [found[i] for i in order]
    arrival = arrival[order] - arrival[order[0]]
    if arrivals == "poisson" and rate is not None:
        random = np.random.Generator(np.random.PCG64(seed))
        arrival = np.round(np.cumsum(random.exponential(1.0, len(order))) / rate, 6)
        arrival -= arrival[0]
    raw = np.concatenate([r.ids for r in chosen])
    none = np.full(len(order), -1)
    columns = RawRequests(
        arrival=arrival,
        session=none,
        turn=none.astype(np.int32),
        prompt_tokens=np.array([r.prompt_tokens for r in chosen], np.int64),
        output_tokens=np.array([r.output_tokens for r in chosen], np.int64),
        flags=np.zeros(len(order), np.uint8),
        phase=np.zeros(len(order), np.uint8),
        generated=np.zeros(len(order), np.int64),
        raw=raw,
        token_type=np.full(len(raw), TokenType.UNKNOWN, np.uint8),
    )
    notes = {
        "file": file.name,
        "arrivals": arrivals if arrivals == "recorded" else f"poisson, {rate:g} requests a second, seed {seed}",
        "generated": generated,
        "max_prompt_tokens": "none" if limit is None else f"{limit} ({too_long} requests left out)",
        "malformed_lines": malformed.note(),
        "times_that_fall": f"{falls} (sorted)" if falls else "0",
    }
    trace = assemble(columns, name=name, block_size=size, generated=generated, notes=notes)
    trace.validate()
    return trace
