"""Sessions found online, against those found in the whole trace; with bounded memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from saecache_rl.engines.vllm.nodes import fingerprints_of
from saecache_rl.engines.vllm.sessions import Known, LiveSessions
from saecache_rl.workloads.sessions import hint, lineage
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace
from tests.cache.strategies import traces
from tests.support import tiny_trace


def walk(trace: Trace, live: LiveSessions, hints: bool = False) -> list[Known]:
    prints = np.random.default_rng(0).permutation(trace.num_identities * 7 + 1).astype(np.int64)
    found = []
    for r in range(trace.num_requests):
        prompt = prints[trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]]]
        generated = prints[trace.generated_blocks[trace.generated_start[r] : trace.generated_start[r + 1]]]
        name = f"client {trace.session[r]}" if hints else None
        known = live.begin(prompt, int(trace.prompt_tokens[r]), float(trace.arrival[r]), name)
        agentic = known.was_agentic or bool(trace.flags[r] & (HAS_TOOLS | ENDED_FOR_TOOL))
        live.end(known.session, generated if len(generated) else prompt[-1:], agentic)
        found.append(known._replace(was_agentic=agentic))
    return found


def check(trace: Trace, found: list[Known], expected) -> None:  # type: ignore[no-untyped-def]
    assert [k.session for k in found] == expected.session.tolist()
    assert [k.turn for k in found] == expected.turn.tolist()
    np.testing.assert_array_equal([k.gap_seconds for k in found], expected.gap_seconds)
    assert [k.was_agentic for k in found] == expected.agentic.astype(bool).tolist()


@settings(max_examples=200, deadline=None)
@given(trace=traces())
def test_online_lineage_equals_that_of_the_trace(trace: Trace) -> None:
    check(trace, walk(trace, LiveSessions(64)), lineage(trace))


def test_online_lineage_of_a_longer_trace() -> None:
    trace = tiny_trace(2, 400)
    check(trace, walk(trace, LiveSessions(64)), lineage(trace))


def test_hints_equal_those_of_the_trace() -> None:
    trace = tiny_trace(2, 400)
    check(trace, walk(trace, LiveSessions(64), hints=True), hint(trace))


def test_memory_is_bounded_and_what_is_old_is_forgotten() -> None:
    live = LiveSessions(100)
    first = live.begin(np.array([1, 2], np.int64), 40, 0.0)
    live.end(first.session, np.array([3], np.int64), False)
    size = live._seen.nbytes + live._sessions.nbytes
    for r in range(5000):
        prompt = np.arange(4, dtype=np.int64) + 10 + 4 * r
        known = live.begin(prompt, 70, float(r))
        assert known.turn == 0
        live.end(known.session, prompt[-1:], False)
    assert live._seen.nbytes + live._sessions.nbytes == size
    again = live.begin(np.array([1, 2, 3, 4], np.int64), 80, 9000.0)
    assert again.turn == 0, "its session is forgotten, so that it begins one"
    for name in range(20_000):
        live.begin(np.array([5], np.int64), 20, 0.0, f"client {name}")
    assert len(live._hinted) <= len(live._sessions)


def test_fingerprints_are_the_first_63_bits() -> None:
    hashes = [bytes([255] * 8 + [0] * 24), bytes([1] + [0] * 31)]
    assert fingerprints_of(hashes).tolist() == [2**63 - 1, 1]
    assert len(fingerprints_of([])) == 0
