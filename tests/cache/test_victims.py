"""Every policy's victims, against a scan of all candidates by a second implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policies.arc import ARC
from saecache_rl.cache.policies.fifo import FIFO
from saecache_rl.cache.policies.gdsf import GDSF
from saecache_rl.cache.policies.lecar import LeCaR
from saecache_rl.cache.policies.lfu import LFU
from saecache_rl.cache.policies.lhd import LHD
from saecache_rl.cache.policies.lpc import LPC
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.marconi import Marconi
from saecache_rl.cache.policies.optimum import Optimum
from saecache_rl.cache.policies.s3fifo import S3FIFO
from saecache_rl.cache.policies.saecache import SHALLOW, SAECache
from saecache_rl.cache.policies.slru import SLRU
from saecache_rl.cache.policies.tlru import TailOptimizedLRU
from saecache_rl.cache.policies.unicache import UniCache
from saecache_rl.cache.policies.workload_aware import WorkloadAware
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.simulator import Simulator
from saecache_rl.workloads.trace import Trace
from tests.cache import naive_general, naive_llm
from tests.cache.naive import NaivePool
from tests.cache.strategies import traces
from tests.support import tiny_trace

REFERENCES = naive_general.REFERENCES | naive_llm.REFERENCES
PEER_POLICIES: list[Policy] = [FIFO(), SLRU(), S3FIFO(), ARC(), GDSF(), LHD(), LeCaR()]
LLM_PEERS: list[Policy] = [TailOptimizedLRU(), WorkloadAware(), Marconi(), LPC()]
POLICIES: list[Policy] = [LRU(), LFU(), UniCache(), SAECache(), Optimum(), *PEER_POLICIES, *LLM_PEERS]


def check_invariants(simulator: Simulator) -> None:
    """What must hold of the arrays between two requests."""
    cache = simulator.cache
    blocks, trace = cache.blocks, simulator.trace
    resident = blocks["identity"] >= 0
    assert resident.sum() + cache.pool["free"][0] == simulator.num_blocks
    assert cache.held.sum() == resident.sum()
    assert np.array_equal(cache.held, np.bincount(blocks["queue"][resident], minlength=4))
    identities = set(blocks["identity"][resident].tolist())
    assert identities == set(np.flatnonzero(cache.first >= 0).tolist())
    if simulator.policy.name != "optimum":
        assert all(trace.parent[i] < 0 or int(trace.parent[i]) in identities for i in identities), "a hole in a prefix"
    children = np.zeros(trace.num_identities, np.int32)
    for identity in identities:
        if trace.parent[identity] >= 0:
            children[trace.parent[identity]] += 1
    assert np.array_equal(children, cache.children)
    for heap in cache.heaps:
        places = cache.arena[heap["start"] : heap["start"] + heap["size"]]
        assert np.array_equal(blocks["position"][places], np.arange(heap["size"]))
    assert cache.heaps["size"].sum() == (blocks["position"] >= 0).sum()
    for ring, ghost in enumerate(cache.ghosts):
        if ghost["fingerprint"] >= 0:
            assert (cache.ghost_table == ring).sum() == 1


def check_against_scan(policy: Policy, trace: Trace, extra: int, data: st.DataObject) -> Simulator:
    """`compare_with_scan` under parameters drawn."""
    space = policy.space()
    action = data.draw(st.lists(st.floats(-1, 1), min_size=len(space), max_size=len(space)))
    params = space.from_action(action)
    if policy.name == "tlru":  # of the order of the small prompts
        lengths = st.lists(st.integers(1, 20), min_size=2, max_size=2)
        params = params.replace(dict(zip(space.names, data.draw(lengths), strict=True)))
    continues = None
    if policy.name == "lpc":
        probability = st.sampled_from([0.0, 0.1, 0.45, 0.5, 0.52, 0.7, 1.0])
        continues = data.draw(st.lists(probability, min_size=trace.num_requests, max_size=trace.num_requests))
    return compare_with_scan(policy, trace, extra, params, continues)


def compare_with_scan(
    policy: Policy, trace: Trace, extra: int, params: PolicyParams, continues: list[float] | None = None
) -> Simulator:
    """Serve request by request, by the simulator and by the scan, and compare all slots after each."""
    room = int(trace.request_blocks.max()) + extra
    simulator = Simulator(trace, policy, room, continues=None if continues is None else np.array(continues))
    reference = REFERENCES.get(policy.name, NaivePool)
    naive = reference(trace, simulator.sessions, policy.name, room, params.as_dict(), continues)
    for request in range(trace.num_requests):
        simulator.serve(1, params)
        naive.deepest *= 0.99  # once a window, here a request
        naive.serve(request)
        held = [-1 if slot is None else slot.identity for slot in naive.slots]
        assert simulator.cache.blocks["identity"].tolist() == held
        assert simulator.cache.pool["deepest"][0] == naive.deepest
        check_invariants(simulator)
        if isinstance(naive, naive_llm.NaiveWorkloadAware):
            assert simulator.cache.reals.tolist() == naive.learned()
    assert simulator.hit_blocks.tolist() == naive.hits
    assert simulator.evictions == len(naive.evicted)
    return simulator


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@settings(max_examples=150, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8), data=st.data())
def test_victims_equal_a_scan_of_all_candidates(policy: Policy, trace: Trace, extra: int, data: st.DataObject) -> None:
    check_against_scan(policy, trace, extra, data)


@pytest.mark.parametrize("policy", PEER_POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize("seed", range(4))
def test_victims_equal_a_scan_over_long_runs(policy: Policy, seed: int) -> None:
    # Long enough for what goes by the number of blocks: LHD's steps of age, densities and explorers, ghosts that
    # are forgotten, frequencies that saturate.
    trace = tiny_trace(seed, 400)
    simulator = compare_with_scan(policy, trace, 60 + 40 * seed, policy.space().start())
    assert simulator.evictions > 1000


@settings(max_examples=60, deadline=None)
@given(trace=traces(max_requests=12, lead=2 * SHALLOW + 6), extra=st.integers(0, 8), data=st.data())
def test_deep_structural_leaves_are_scanned_exactly(trace: Trace, extra: int, data: st.DataObject) -> None:
    check_against_scan(SAECache(), trace, extra, data)
