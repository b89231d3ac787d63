"""Second implementations in plain Python, and small random traces to compare them with the compiled ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from saecache_rl.workloads.assemble import RawRequests, assemble
from saecache_rl.workloads.trace import Trace

Chain = list[int]


def naive_chains(chains: list[Chain], roots: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Identities, parents and offsets by a dictionary of prefixes."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    blocks, parents, offsets = [], [], []
    for chain, root in zip(chains, roots, strict=True):
        parent = -1
        for depth in range(len(chain)):
            key = (root, tuple(chain[: depth + 1]))
            if key not in known:
                known[key] = len(known)
                parents.append(parent)
                offsets.append(depth)
            parent = known[key]
            blocks.append(parent)
    return blocks, parents, offsets


def naive_lineage(trace: Trace) -> list[int]:
    """Sessions as the docstring of `lineage` says, one set of sessions per block."""
    touched: dict[int, set[int]] = {}
    tails: dict[int, int] = {}  # session: last block of its latest chain
    latest: dict[int, int] = {}  # session: tokens of its latest prompt
    result = []
    for r in range(trace.num_requests):
        prompt = trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]].tolist()
        reply = trace.generated_blocks[trace.generated_start[r] : trace.generated_start[r + 1]].tolist()
        own = None
        for block in reversed(prompt):
            holders = [s for s, tail in tails.items() if tail == block]
            if len(holders) == 1 and touched[block] == set(holders):
                if trace.prompt_tokens[r] > latest[holders[0]]:
                    own = holders[0]
                break
        if own is None:
            own = len(latest)
        latest[own] = int(trace.prompt_tokens[r])
        for block in prompt + reply:
            touched.setdefault(block, set()).add(own)
        if prompt + reply:
            tails[own] = (prompt + reply)[-1]
        result.append(own)
    return result


def hit_blocks(trace: Trace) -> int:
    """Blocks that an infinite cache serves."""
    seen: set[int] = set()
    hits = 0
    for r in range(trace.num_requests):
        prompt = trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]].tolist()
        for block in prompt[: int(trace.matchable_blocks[r])]:
            if block not in seen:
                break
            hits += 1
        seen.update(prompt)
        seen.update(trace.generated_blocks[trace.generated_start[r] : trace.generated_start[r + 1]].tolist())
    return hits


@st.composite
def small_traces(draw: st.DrawFn) -> Trace:
    """Traces of block size 1 in which prompts often extend earlier ones, with or without their replies."""
    requests: list[tuple[Chain, Chain]] = []
    for _ in range(draw(st.integers(1, 14))):
        base: Chain = []
        if requests and draw(st.booleans()):
            prompt, reply = draw(st.sampled_from(requests))
            base = draw(st.sampled_from([prompt, prompt + reply, prompt[: len(prompt) // 2]]))
        prompt = base + draw(st.lists(st.integers(0, 2), min_size=0 if base else 1, max_size=3))
        requests.append((prompt, draw(st.lists(st.integers(0, 2), max_size=2))))
    shown = [draw(st.booleans()) for _ in requests]
    replies = [reply if show else [] for (_, reply), show in zip(requests, shown, strict=True)]
    count = len(requests)
    raw = [block for (prompt, _), reply in zip(requests, replies, strict=True) for block in prompt + reply]
    columns = RawRequests(
        arrival=np.arange(count, dtype=np.float64),
        session=np.full(count, -1),
        turn=np.full(count, -1, np.int32),
        prompt_tokens=np.array([len(prompt) for prompt, _ in requests], np.int64),
        output_tokens=np.array([len(reply) + 1 for _, reply in requests], np.int64),
        flags=np.array([draw(st.integers(0, 3)) for _ in requests], np.uint8),
        phase=np.zeros(count, np.uint8),
        generated=np.array([len(reply) for reply in replies], np.int64),
        raw=np.array(raw, np.int64),
        token_type=np.zeros(len(raw), np.uint8),
    )
    return assemble(columns, name="small", block_size=1, notes={})
