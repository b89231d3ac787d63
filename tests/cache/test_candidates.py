"""The candidates of a choice against a scan of the whole pool, and what an eviction of one of them leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.engines.stepped import SteppedSimulator
from saecache_rl.workloads.trace import Trace
from tests.cache.strategies import traces
from tests.cache.test_victims import check_invariants


def leaves_by_scan(engine: SteppedSimulator) -> list[int]:
    """Unreferenced slots with another copy, or without a resident child; the least recent, then deepest first."""
    blocks, parent = engine.cache.blocks, engine.trace.parent
    resident = [int(i) for i in blocks["identity"] if i >= 0]
    parents = {int(parent[i]) for i in resident}
    leaves = [
        slot
        for slot, block in enumerate(blocks)
        if block["identity"] >= 0
        and block["refs"] == 0
        and (resident.count(int(block["identity"])) > 1 or int(block["identity"]) not in parents)
    ]
    return sorted(leaves, key=lambda slot: (blocks[slot]["access"], -int(blocks[slot]["offset"])))


def candidates_by_scan(engine: SteppedSimulator, k: int) -> list[int]:
    """The first leaf of each queue and token type, at most k of them; then the first others; in LRU's order."""
    blocks, leaves = engine.cache.blocks, leaves_by_scan(engine)
    seen: set[tuple[int, int]] = set()
    heads, others = [], []
    for slot in leaves:
        label = (int(blocks[slot]["queue"]), int(blocks[slot]["token_type"]))
        (others if label in seen else heads).append(slot)
        seen.add(label)
    heads = heads[:k]
    chosen = set(heads + others[: k - len(heads)])
    return [slot for slot in leaves if slot in chosen]


def record(engine: SteppedSimulator, slots: list[int]) -> Any:
    return engine.cache.blocks[np.array(slots, np.int64)].tolist()


@settings(max_examples=150, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8), k=st.integers(1, 9), run=st.booleans(), data=st.data())
def test_candidates_equal_a_scan_of_all_leaves(
    trace: Trace, extra: int, k: int, run: bool, data: st.DataObject
) -> None:
    engine = SteppedSimulator(trace, int(trace.request_blocks.max()) + extra, k, run)
    found = engine.advance()
    while found:
        expected = candidates_by_scan(engine, k)
        assert found == len(expected)
        assert engine.candidates.tolist() == record(engine, expected)
        found = engine.advance(data.draw(st.integers(0, found - 1)))
    check_invariants(engine)
    assert engine.done


@settings(max_examples=100, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8), data=st.data())
def test_a_run_is_the_victim_and_what_was_last_accessed_with_it(trace: Trace, extra: int, data: st.DataObject) -> None:
    num_blocks = int(trace.request_blocks.max()) + extra
    runs, blocks = (SteppedSimulator(trace, num_blocks, num_blocks, run) for run in (True, False))
    found = runs.advance()
    blocks.advance()
    while found:
        choice = data.draw(st.integers(0, found - 1))
        victim = runs.candidates[choice]
        found = runs.advance(choice)
        while blocks.evictions < runs.evictions:
            assert victim in blocks.candidates
            chosen = int(np.flatnonzero(blocks.candidates == victim)[0])
            above = trace.parent[victim["identity"]]
            blocks.advance(chosen)
            if blocks.evictions < runs.evictions:
                same = (blocks.candidates["identity"] == above) & (blocks.candidates["access"] == victim["access"])
                (victim,) = blocks.candidates[same]
        assert blocks.evictions == runs.evictions
        assert np.array_equal(blocks.candidates, runs.candidates)
    assert np.array_equal(runs.hit_blocks, blocks.hit_blocks)
