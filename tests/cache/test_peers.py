"""What each general-purpose peer is known for, on traffic made to show it, and what its memory costs."""

from __future__ import annotations

import numpy as np
import pytest

from saecache_rl.cache.policies.arc import ARC, TARGET
from saecache_rl.cache.policies.fifo import FIFO
from saecache_rl.cache.policies.gdsf import GDSF
from saecache_rl.cache.policies.lecar import WEIGHT, LeCaR
from saecache_rl.cache.policies.lfu import LFU
from saecache_rl.cache.policies.lhd import BUDGET, LHD
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.s3fifo import S3FIFO
from saecache_rl.cache.policies.slru import SLRU
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.simulator import Simulator
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import Trace
from tests.cache.test_victims import PEER_POLICIES, compare_with_scan
from tests.support import TraceBuilder, tiny_trace

BLOCK = 2
NUM_BLOCKS = 100


def trace_of(prompts: list[tuple[int, int]]) -> Trace:
    """Requests one second apart, each a prompt (name, blocks) all of whose blocks can hit; names are prefixes."""
    builder = TraceBuilder(BLOCK)
    for i, (name, blocks) in enumerate(prompts):
        tokens = [(1000 * name + place, TokenType.USER) for place in range(blocks * BLOCK)]
        builder.request(float(i), [*tokens, (-1, TokenType.USER)], [])
    return builder.trace()


def hits_of(
    policy: Policy, prompts: list[tuple[int, int]], num_blocks: int = NUM_BLOCKS
) -> tuple[Simulator, list[int]]:
    simulator = Simulator(trace_of(prompts), policy, num_blocks)
    simulator.serve(len(prompts))
    return simulator, simulator.hit_blocks.tolist()


def scans(rounds: int = 30) -> tuple[list[tuple[int, int]], list[int]]:
    """10 popular prompts of 4 blocks, asked for twice, then 20 that come once: more than the pool holds.

    Also the requests that an LRU cache must miss: the first of each pair but for the warm-up.
    """
    prompts: list[tuple[int, int]] = []
    first: list[int] = []
    for r in range(rounds):
        if r >= 8:
            first += range(len(prompts), len(prompts) + 10)
        prompts += [(name, 4) for name in range(10)] * 2
        prompts += [(100 + 20 * r + i, 4) for i in range(20)]
    return prompts, first


@pytest.mark.parametrize(
    ("policy", "least", "most"),
    [
        (LRU(), 0.0, 0.0),
        (FIFO(), 0.0, 0.0),
        (SLRU(), 0.95, 1.0),
        (S3FIFO(), 0.95, 1.0),
        (ARC(), 0.95, 1.0),
        (LHD(), 0.95, 1.0),
        (LeCaR(), 0.8, 1.0),
        (LFU(), 0.95, 1.0),
        (GDSF(), 0.95, 1.0),
    ],
    ids=lambda value: value.name if isinstance(value, Policy) else "",
)
def test_what_comes_once_spares_what_is_popular(policy: Policy, least: float, most: float) -> None:
    prompts, first = scans()
    _, hits = hits_of(policy, prompts)
    assert least <= np.mean([hits[i] for i in first]) / 4 <= most


@pytest.mark.parametrize(
    ("policy", "theirs", "tolerance"),
    [
        (LRU(), "LRU", 0.0),
        (FIFO(), "FIFO", 0.0),
        (ARC(), "ARC", 0.002),
        (SLRU(), "SLRU", 0.01),
        (S3FIFO(), "S3FIFO", 0.01),
    ],
    ids=lambda value: value.name if isinstance(value, Policy) else "",
)
@pytest.mark.parametrize("num_blocks", [50, 200])
def test_single_blocks_are_hit_as_in_libcachesim(
    policy: Policy, theirs: str, tolerance: float, num_blocks: int
) -> None:
    # Nothing hangs together here. A request's partial block takes a slot more.
    libcachesim = pytest.importorskip("libcachesim")
    draws = (np.random.default_rng(1).zipf(1.2, 20_000) % 5_000).tolist()
    _, hits = hits_of(policy, [(x, 1) for x in draws], num_blocks + 1)
    cache, request, hit = getattr(libcachesim, theirs)(cache_size=num_blocks), libcachesim.Request(), 0
    request.obj_size = 1
    for x in draws:
        request.obj_id = x
        hit += cache.get(request)
    assert abs(np.mean(hits) - hit / len(draws)) <= tolerance


def test_lhd_learns_to_keep_a_part_of_a_loop() -> None:
    # 30 prompts of 4 blocks round and round in a pool of 100, of which a miss needs 5: LRU always evicts what comes
    # next; the best is to miss some and keep the others, 95 blocks of the 115 that come before a block returns, 0.83.
    prompts = [(i % 30, 4) for i in range(3000)]
    shares = {}
    for policy in (LRU(), ARC(), LHD()):
        _, hits = hits_of(policy, prompts)
        shares[policy.name] = np.mean(hits[1500:]) / 4
    assert shares["lru"] == shares["arc"] == 0.0
    assert 0.7 < shares["lhd"] < 95 / 115


def test_what_lhd_keeps_to_explore_equals_the_reference() -> None:
    # In short chains what explores soon is a leaf; 1 % of the pool is 3 blocks.
    draws = np.random.default_rng(2).zipf(1.2, 2500) % 3_000
    trace = trace_of([(int(x), 1) for x in draws])
    policy = LHD()
    simulator = compare_with_scan(policy, trace, 300, policy.space().start())
    without = Simulator(trace, policy, 302)
    without.cache.ints[BUDGET] = 0
    without.serve(len(draws))
    assert without.hit_blocks.tolist() != simulator.hit_blocks.tolist(), "nothing was explored"


def test_lhd_needs_time_to_know_popularity() -> None:
    # Independent draws by Zipf's law. Densities from 16 pools' worth of accesses beat LRU, those from one are noise.
    draws = np.random.default_rng(0).zipf(1.2, 40_000) % 20_000
    shares = {}
    for name, policy in (("lru", LRU()), ("lhd", LHD()), ("slow", LHD(interval=16))):
        _, hits = hits_of(policy, [(int(x), 1) for x in draws], NUM_BLOCKS + 1)
        shares[name] = np.mean(hits)
    assert shares["slow"] > shares["lru"] + 0.02 > shares["lhd"]


def test_fifo_forgets_use_and_lru_does_not() -> None:
    # Pool of 3: a, b, c come in, a is used, d takes a place.
    prompts = [(1, 1), (2, 1), (3, 1), (1, 1), (4, 1), (1, 1)]
    assert hits_of(FIFO(), prompts, 4)[1] == [0, 0, 0, 1, 0, 0]
    assert hits_of(LRU(), prompts, 4)[1] == [0, 0, 0, 1, 0, 1]


def test_gdsf_keeps_what_is_dear_and_lfu_does_not() -> None:
    # A prompt of 60 blocks, then 60 of one block each, all once: LFU evicts the long one's end, which is the oldest of
    # those used once. With attention as much as all else at 1,000 tokens of context, its last block costs 12 % more.
    prompts = [(0, 60), *((1 + i, 1) for i in range(60)), (0, 60)]
    dear = GDSF().space().start().replace({"cost.context": 1000.0})
    _, by_lfu = hits_of(LFU(), prompts)
    simulator = Simulator(trace_of(prompts), GDSF(), NUM_BLOCKS)
    simulator.serve(len(prompts), dear)
    assert by_lfu[-1] < 50
    assert simulator.hit_blocks[-1] == 60


def drifting() -> list[tuple[int, int]]:
    """Prompts of 4 blocks, each used again 20 requests later, in a pool that holds 25, and never after that."""
    prompts: list[tuple[int, int]] = []
    for start in range(0, 2000, 20):
        prompts += [(name, 4) for name in range(start, start + 20)] * 2
    return prompts


def test_arc_and_lecar_turn_to_the_side_that_pays() -> None:
    for prompts, recency_pays in ((scans()[0], False), (drifting(), True)):
        arc, _ = hits_of(ARC(), prompts)
        lecar, _ = hits_of(LeCaR(), prompts)
        assert (arc.cache.reals[TARGET] > NUM_BLOCKS / 4) == recency_pays
        assert (lecar.cache.reals[WEIGHT] > 0.5) == recency_pays


def test_the_seed_is_all_the_chance_there_is() -> None:
    trace = tiny_trace(0, 400)
    num_blocks = 2 * int(trace.request_blocks.max())
    hits = []
    for seed in (0, 0, 1):
        simulator = Simulator(trace, LeCaR(seed), num_blocks)
        simulator.serve(400)
        hits.append(simulator.hit_blocks.tolist())
    assert hits[0] == hits[1] != hits[2]


@pytest.mark.parametrize("policy", PEER_POLICIES, ids=lambda p: p.name)
def test_metadata_is_bounded_and_flat(policy: Policy) -> None:
    num_blocks = 500
    trace = trace_of([(i, 4) for i in range(5000)])
    simulator = Simulator(trace, policy, num_blocks)
    simulator.serve(1000)
    sizes = simulator.cache.ints.nbytes, simulator.cache.reals.nbytes, simulator.cache.ghosts.nbytes
    simulator.serve(4000)
    cache = simulator.cache
    assert (cache.ints.nbytes, cache.reals.nbytes, cache.ghosts.nbytes) == sizes
    assert cache.ints.nbytes + cache.ghosts.nbytes <= 4 * num_blocks * 64
    # What does not grow with the pool: LHD's counts and densities.
    assert cache.reals.nbytes == Simulator(trace, policy, 2 * num_blocks).cache.reals.nbytes


@pytest.mark.parametrize(
    "make", [lambda: LeCaR(-1), lambda: LHD(seed=2**63), lambda: LHD(0), lambda: SLRU(1), lambda: SLRU(17)]
)
def test_impossible_options_are_refused(make: object) -> None:
    with pytest.raises(InputError, match="are possible"):
        make()  # type: ignore[operator]
