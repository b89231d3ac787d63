"""A trace saves to and loads from one file, knows its own hash, and its rules catch what breaks them."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.trace import COLUMNS, Trace
from tests.support import TraceBuilder
from tests.workloads.naive import small_traces


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(small_traces())
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, trace: Trace) -> None:
    trace.validate()
    file = tmp_path / "trace.npz"
    trace.save(file)
    loaded = Trace.load(file)
    assert loaded.digest == trace.digest
    assert (loaded.name, loaded.phases, dict(loaded.notes)) == (trace.name, trace.phases, dict(trace.notes))
    for column, kind in COLUMNS.items():
        assert getattr(loaded, column).dtype == np.dtype(kind)
        np.testing.assert_array_equal(getattr(loaded, column), getattr(trace, column))
    assert [p.name for p in tmp_path.iterdir()] == ["trace.npz"]


def test_every_column_counts_in_the_digest() -> None:
    trace = make("chat", "requests=50")
    for column in COLUMNS:
        changed = getattr(trace, column).copy()
        changed[-1] += 1
        assert dataclasses.replace(trace, **{column: changed}).digest != trace.digest
    assert dataclasses.replace(trace, block_size=17).digest != trace.digest
    unnamed = trace.without_generated()
    assert dataclasses.replace(unnamed, names_replies=True).digest != unnamed.digest


def test_a_short_reply_needs_room_unless_it_is_not_known(tmp_path: Path) -> None:
    builder = TraceBuilder(block_size=4)
    for prompt, reply in ((8, 1), (8, 2), (8, 4), (8, 5), (7, 2), (7, 3), (1, 0)):
        builder.request(0.0, [(i, TokenType.USER) for i in range(prompt)], [(9, TokenType.RESPONSE)] * reply)
    trace = builder.trace()
    assert trace.request_blocks.tolist() == [2, 3, 3, 3, 2, 3, 1]
    unnamed = trace.without_generated()
    assert unnamed.request_blocks.tolist() == [2, 2, 2, 2, 2, 2, 1]
    unnamed.save(tmp_path / "trace.npz")
    assert Trace.load(tmp_path / "trace.npz").request_blocks.tolist() == [2, 2, 2, 2, 2, 2, 1]
    with pytest.raises(InputError, match="names_replies is False"):
        dataclasses.replace(trace, names_replies=False).validate()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.npz"
    make("chat", "requests=20").save(file)
    content = file.read_bytes()
    source = random.Random(3)
    digest = Trace.load(file).digest
    refused = 0
    for _ in range(200):
        changed = bytearray(content)
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        file.write_bytes(changed[: source.randrange(len(changed))] if source.random() < 0.2 else changed)
        problem, loaded = "", digest
        try:
            loaded = Trace.load(file).digest
        except InputError as error:
            problem = str(error)
        # A change in what no column holds (names, padding) may pass; the columns are as saved.
        assert loaded == digest
        assert "\n" not in problem
        refused += bool(problem)
    assert refused > 100
    with pytest.raises(InputError, match="no such file"):
        Trace.load(tmp_path / "absent.npz")


@pytest.mark.parametrize(
    ("column", "row", "value", "says"),
    [
        ("arrival", 3, np.nan, "arrival must be finite"),
        ("arrival", 0, -1.0, "arrival must be finite and not negative"),
        ("arrival", 0, 1e9, "arrival falls"),
        ("prompt_tokens", 2, 0, "at least one token"),
        ("output_tokens", 2, -1, "must not be negative"),
        ("prompt_tokens", 2, 10**6, "prompt_start disagrees"),
        ("output_tokens", 2, 10**6, "generated blocks disagree"),
        ("prompt_blocks", 0, -1, "outside 0"),
        ("prompt_blocks", 0, 10**8, "outside 0"),
        ("prompt_blocks", 1, 0, "not a chain of parents"),
        ("parent", 0, 5, "precedes its parent"),
        ("offset", 1, 9, "offset is not"),
        ("token_type", 0, 9, "unknown token type"),
    ],
)
def test_validate_names_what_is_broken(column: str, row: int, value: float, says: str) -> None:
    trace = make("chat", "requests=50")
    changed = getattr(trace, column).copy()
    changed[row] = value
    with pytest.raises(InputError, match=says):
        dataclasses.replace(trace, **{column: changed}).validate()


def test_head_and_without_generated_stay_valid() -> None:
    trace = make("balanced", "requests=300")
    trace.head(120).validate()
    assert trace.head(120).num_requests == 120
    trace.without_generated().validate()
    assert len(trace.without_generated().generated_blocks) == 0
