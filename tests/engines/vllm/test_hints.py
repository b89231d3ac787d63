"""Hints of a client: what is valid is taken, what is not is counted and ignored."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saecache_rl.engines.vllm.hints import NONE, Hints, read_hints
from saecache_rl.vocabulary import TokenType

SPANS = ((0, 10, TokenType.SYSTEM), (12, 20, TokenType.USER))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (None, NONE),
        ({}, NONE),
        ({"something else": 1}, NONE),
        ({"session_id": "a"}, Hints(session_id="a")),
        ({"session_kind": "agentic"}, Hints(session_kind="agentic")),
        ({"spans": [[0, 10, "system"], [12, 20, "user"]]}, Hints(spans=SPANS)),
        ({"spans": json.dumps([[0, 10, "system"], [12, 20, "user"]])}, Hints(spans=SPANS)),
        ({"spans": [0, 10, "system", 12, 20, "user"]}, Hints(spans=SPANS)),
        ({"priority": 0}, Hints(priority=0, retention_seconds=60.0)),
        ({"priority": "99", "retention_seconds": "2.5"}, Hints(priority=99, retention_seconds=2.5)),
        ({"retention_seconds": 5}, Hints(priority=50, retention_seconds=5.0)),
        ({"no_reuse": True}, Hints(no_reuse=True)),
        ({"no_reuse": "false"}, NONE),
    ],
)
def test_valid(extra: dict[str, Any] | None, expected: Hints) -> None:
    ignored: Counter[str] = Counter()
    assert read_hints(extra, ignored) == expected
    assert not ignored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_id", ""),
        ("session_id", "x" * 257),
        ("session_id", 5),
        ("session_kind", "loop"),
        ("session_kind", ["chat"]),
        ("spans", "[[0, 10"),
        ("spans", "7"),
        ("spans", [[0, 10, "poem"]]),
        ("spans", [[10, 10, "user"]]),
        ("spans", [[0, 10, "user"], [5, 20, "user"]]),
        ("spans", [[-1, 10, "user"]]),
        ("spans", [[True, 10, "user"]]),
        ("spans", [[0, math.nan, "user"]]),
        ("spans", [0, 10]),
        ("spans", {"a": 1}),
        ("priority", -1),
        ("priority", 100),
        ("priority", True),
        ("priority", 1.5),
        ("priority", math.nan),
        ("priority", math.inf),
        ("retention_seconds", 0),
        ("retention_seconds", -5),
        ("retention_seconds", True),
        ("retention_seconds", math.nan),
        ("retention_seconds", math.inf),
        ("retention_seconds", "soon"),
        ("retention_seconds", 1e9),
        ("no_reuse", 2),
        ("no_reuse", "perhaps"),
    ],
)
def test_what_is_not_valid_is_counted_and_the_rest_holds(name: str, value: Any) -> None:
    ignored: Counter[str] = Counter()
    other = {"session_kind": "chat"} if name != "session_kind" else {"session_id": "a"}
    assert read_hints({name: value} | other, ignored) == Hints(**other)
    assert ignored == {name: 1}


@given(
    st.dictionaries(
        st.sampled_from(["session_id", "session_kind", "spans", "priority", "retention_seconds", "no_reuse"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
)
def test_nothing_breaks_it(extra: dict[str, Any]) -> None:
    hints = read_hints(extra, Counter())
    assert hints.priority is None or 0 <= hints.priority <= 99
    assert hints.retention_seconds is None or (math.isfinite(hints.retention_seconds) and hints.retention_seconds > 0)
