"""Sessions by lineage: as an independent reading of the rule says, causal, and near the generators' true sessions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.sessions import Sessions, find_sessions, hint, lineage
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace
from tests.support import TraceBuilder
from tests.workloads.naive import naive_lineage, small_traces


def previous(sessions: Sessions) -> np.ndarray:
    """(R,) the request before each in its session, or -1."""
    last: dict[int, int] = {}
    result = []
    for r, session in enumerate(sessions.session.tolist()):
        result.append(last.get(session, -1))
        last[session] = r
    return np.array(result)


def precision_and_recall(trace: Trace) -> tuple[float, float]:
    found, true = previous(lineage(trace)), previous(hint(trace))
    right = np.count_nonzero((found == true) & (found >= 0))
    return right / max(np.count_nonzero(found >= 0), 1), right / max(np.count_nonzero(true >= 0), 1)


@given(small_traces())
def test_lineage_equals_the_naive_reading(trace: Trace) -> None:
    trace.validate()
    assert lineage(trace).session.tolist() == naive_lineage(trace)


@given(small_traces(), st.data())
def test_a_trace_cut_short_has_the_same_leading_rows(trace: Trace, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, trace.num_requests))
    whole, part = lineage(trace), lineage(trace.head(cut))
    for field in ("session", "turn", "gap_seconds", "agentic"):
        np.testing.assert_array_equal(getattr(part, field), getattr(whole, field)[:cut])


@given(small_traces())
def test_turn_gap_and_agentic_follow_from_the_session(trace: Trace) -> None:
    found = lineage(trace)
    for r, before in enumerate(previous(found).tolist()):
        tools = bool(trace.flags[r])
        if before < 0:
            assert found.turn[r] == 0
            assert np.isnan(found.gap_seconds[r])
            assert found.agentic[r] == tools
        else:
            assert found.turn[r] == found.turn[before] + 1
            assert found.gap_seconds[r] == trace.arrival[r] - trace.arrival[before]
            assert found.agentic[r] == (tools or bool(found.agentic[before]))


def _tokens(first: int, count: int) -> list[tuple[int, TokenType]]:
    return [(first + i, TokenType.USER) for i in range(count)]


def test_a_conversation_is_one_session_and_a_fork_of_it_another() -> None:
    trace = TraceBuilder(block_size=4)
    opening, reply = _tokens(0, 8), _tokens(100, 5)
    trace.request(0.0, opening, reply)
    trace.request(5.0, opening + reply + _tokens(200, 4), _tokens(300, 5), flags=ENDED_FOR_TOOL)
    # The same conversation from its first reply again: the session's chain has moved on, so this begins another.
    trace.request(9.0, opening + reply + _tokens(400, 4), _tokens(500, 5))
    made = trace.trace()
    found = lineage(made)
    assert found.session.tolist() == [0, 0, 1]
    assert found.turn.tolist() == [0, 1, 0]
    assert found.gap_seconds[1] == 5.0
    assert found.agentic.tolist() == [0, 1, 0]


def test_a_shared_template_is_no_session() -> None:
    # Own parts below a block: every chain ends in the template's last block, which several requests have had.
    trace = TraceBuilder(block_size=4)
    for n in range(6):
        trace.request(float(n), _tokens(0, 8) + _tokens(100 * (n + 1), 3), [])
    assert lineage(trace.trace()).session.tolist() == list(range(6))


@pytest.mark.parametrize("name", ["chat", "templated", "agentic", "agentic_shift", "balanced"])
def test_lineage_finds_the_true_sessions_of_generated_traces(name: str) -> None:
    trace = make(name, "requests=3000")
    precision, recall = precision_and_recall(trace)
    links = np.count_nonzero(previous(hint(trace)) >= 0)
    assert (links == 0) == (name == "templated")
    if links:
        assert precision > 0.999
        assert recall > 0.999
    else:
        assert lineage(trace).session.tolist() == list(range(3000))


def test_lineage_without_reply_blocks_or_with_reasoning_stripped_loses_some() -> None:
    precision, recall = precision_and_recall(make("agentic_shift", "requests=3000", "generated=none"))
    assert precision > 0.99
    assert recall > 0.95
    precision, recall = precision_and_recall(make("agentic", "requests=3000", "agentic.reasoning_kept=0"))
    assert precision > 0.999
    assert 0.8 < recall < 0.97


def test_hint_takes_the_clients_ids_and_gives_each_request_without_one_its_own() -> None:
    trace = make("chat", "requests=200")
    found = hint(trace)
    assert np.array_equal(found.session, trace.session)
    assert np.array_equal(found.turn, trace.turn)
    some = trace.session.copy()
    some[::2] = -1
    mixed = hint(dataclasses.replace(trace, session=some))
    assert len(np.unique(mixed.session[::2])) == 100
    assert not set(mixed.session[::2]) & set(mixed.session[1::2])


def test_unknown_source_and_missing_ids_are_refused() -> None:
    trace = make("chat", "requests=50")
    with pytest.raises(InputError, match="did you mean 'lineage'"):
        find_sessions(trace, "linage")
    nameless = dataclasses.replace(trace, session=np.full(50, -1, np.int32))
    with pytest.raises(InputError, match=r"engine\.sessions=lineage"):
        find_sessions(nameless, "hint")
    assert find_sessions(nameless, "lineage").source == "lineage"
