"""A checkpoint gives back what went in, to the bit, or says that it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from saecache_rl import checkpoint
from saecache_rl.errors import InputError

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
arrays = npst.arrays(
    st.sampled_from(["f8", "i4", "u1", "?", "i8"]), npst.array_shapes(min_dims=1, max_dims=2, max_side=3)
)
states = st.recursive(
    plain | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


@given(st.dictionaries(st.text(max_size=5), states, max_size=4))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "c.npz"
    checkpoint.save(path, state)
    assert same(checkpoint.load(path), state)


def test_a_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    generator.random(5)
    checkpoint.save(tmp_path / "c.npz", {"generator": generator.bit_generator.state})
    expected = generator.random(4)
    other = np.random.default_rng(0)
    other.bit_generator.state = checkpoint.load(tmp_path / "c.npz")["generator"]
    assert np.array_equal(other.random(4), expected)


@pytest.mark.parametrize("length", [0, 10, 300, -30])
def test_a_damaged_file_is_named(tmp_path: Path, length: int) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, {"a": np.arange(100), "b": 1.5})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=r"c\.npz: not a whole checkpoint"):
        checkpoint.load(path)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, {"a": np.zeros(1000, np.int64)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a whole checkpoint"):
        checkpoint.load(path)


def test_absent_and_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such checkpoint"):
        checkpoint.load(tmp_path / "c.npz")
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoint.save(tmp_path / "c.npz", {})
    monkeypatch.undo()
    with pytest.raises(InputError, match="format 99, expected 1"):
        checkpoint.load(tmp_path / "c.npz")


def test_a_failed_save_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, {"a": 1})
    for bad in ({"b": object()}, {"b": np.array([object()])}, {1: 2}):
        with pytest.raises(TypeError):
            checkpoint.save(path, bad)  # type: ignore[arg-type]
    assert checkpoint.load(path) == {"a": 1}
