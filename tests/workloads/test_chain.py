"""Identities: dense, in order of appearance, equal exactly when the prefixes (and the roots) are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from saecache_rl.workloads.chain import chain_blocks
from tests.workloads.naive import naive_chains

# The extremes of int64 and its neighbours are ids like any other.
IDS = st.sampled_from([0, 1, 2, 2**62, 2**63 - 1, -1, -(2**63)])


@given(st.lists(st.tuples(st.lists(IDS, max_size=6), st.integers(0, 2)), max_size=12))
def test_equal_exactly_when_prefixes_are(requests: list[tuple[list[int], int]]) -> None:
    chains, roots = [chain for chain, _ in requests], [root for _, root in requests]
    starts = np.concatenate(([0], np.cumsum([len(chain) for chain in chains]))).astype(np.int64)
    flat = np.array([block for chain in chains for block in chain], np.int64)
    found = chain_blocks(flat, starts, np.array(roots, np.int32))
    blocks, parents, offsets = naive_chains(chains, roots)
    assert found.blocks.tolist() == blocks
    assert found.parent.tolist() == parents
    assert found.offset.tolist() == offsets
    assert [blocks.index(i) for i in range(len(parents))] == found.first.tolist()


def test_growing_table_keeps_identities() -> None:
    # 300,000 different chains of 2 outgrow the first table (65,536 identities) several times; then all come again.
    random = np.random.default_rng(1)
    raw = random.permutation(600_000).astype(np.int64)
    twice = np.concatenate((raw, raw))
    found = chain_blocks(twice, np.arange(0, 1_200_001, 2, dtype=np.int64), np.zeros(600_000, np.int32))
    assert len(found.parent) == 600_000
    assert np.array_equal(found.blocks[:600_000], np.arange(600_000))
    assert np.array_equal(found.blocks[600_000:], np.arange(600_000))


def test_one_chain_longer_than_the_first_table() -> None:
    found = chain_blocks(np.zeros(200_000, np.int64), np.array([0, 200_000]), np.zeros(1, np.int32))
    assert np.array_equal(found.parent, np.arange(-1, 199_999))
