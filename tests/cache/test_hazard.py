"""The policy `hazard` and its guard: victims, learning, causality, bounds."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.policies.hazard import learner
from saecache_rl.cache.policies.hazard.features import FORESIGHT, GAP, GAP_BEFORE, SINCE, features_of, log_seconds_level
from saecache_rl.cache.policies.hazard.index import KINDS, WIDTHS, make_curve
from saecache_rl.cache.policies.hazard.layout import (
    BINS,
    DEEPEST,
    FEATURES_AT_MOST,
    GHOSTS,
    GROUPS,
    IN_LRU,
    IN_SHADOW,
    LISTED,
    State,
    view,
)
from saecache_rl.cache.policies.hazard.oracle import SIGHTS, SeeingHazard
from saecache_rl.cache.policies.hazard.policy import GuardedHazard, Hazard
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.engines.simulator import Simulator
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import Trace
from tests.cache.naive import NaivePool, Slot
from tests.cache.strategies import traces
from tests.cache.test_victims import check_invariants
from tests.support import TraceBuilder, tiny_trace

POLICIES: list[Hazard] = [
    Hazard(),
    GuardedHazard(),
    Hazard(features="twelve"),
    Hazard(model="table"),
    Hazard(index="forever"),
]
#: LRU's regret is always enough for the index, and never.
ENOUGH = {"guard.regret": 0.0}
NEVER = {"guard.regret": 1.0, "guard.misses": 1000.0}
#: A guard that changes the order at once.
EAGER = ENOUGH | {"guard.margin": 1e-6, "guard.loss": 1e-6, "guard.doubt": 0.0, "guard.window": 100.0}
NAMES = ["hazard", "adaptive", "twelve", "class_table", "forever"]


def state_of(simulator: Simulator) -> State:
    return view(simulator.cache.ints)


def check_state(simulator: Simulator) -> None:
    """What must hold of the policy's own arrays between two requests."""
    state, cache = state_of(simulator), simulator.cache
    head, entries = state.head[0], state.entries
    known = entries["fingerprint"] >= 0
    free = []
    e = int(head["free_entry"])
    while e >= 0:
        free.append(e)
        e = int(entries["older"][e])
    assert sorted([*free, *np.flatnonzero(known).tolist()]) == list(range(len(entries)))
    listed = []
    e = int(head["newest"])
    while e >= 0:
        listed.append(e)
        e = int(entries["older"][e])
    assert head["listed"] == len(listed) <= GHOSTS * simulator.num_blocks
    assert sorted(listed) == np.flatnonzero(known & (entries["flags"] & LISTED != 0)).tolist()
    assert head["lru_held"] == (entries["flags"][listed] & IN_LRU != 0).sum() <= max(simulator.num_blocks - 1, 1)
    assert (entries["flags"][listed[: int(head["lru_held"])]] & IN_LRU != 0).all(), "the shadow LRU is the list's start"
    for e in np.flatnonzero(known & (entries["segment"] >= 0)):
        segment = state.segments[entries["segment"][e] % len(state.segments)]
        if segment["number"] == entries["segment"][e]:
            assert (entries["flags"][e] & DEEPEST != 0) == (segment["entry"] == e)
    latest = int(head["segments"]) - 1
    if latest >= 0 and head["model"] == learner.ADDITIVE:
        place, ids = latest % len(state.segments), np.zeros(FEATURES_AT_MOST, np.uint16)
        count = features_of(state.levels, place, int(head["features"]), ids)
        assert state.segments["features"][place] == count
        assert np.array_equal(state.rows[place, :count], ids[:count])
    copies = np.zeros(len(entries), np.int64)
    resident = np.flatnonzero(cache.blocks["identity"] >= 0)
    for slot in resident:
        e = int(state.slots["entry"][slot])
        assert entries["fingerprint"][e] == cache.blocks["identity"][slot]
        copies[e] += 1
    assert np.array_equal(copies[known], entries["copies"][known])
    shadow = known & (entries["flags"] & IN_SHADOW != 0)
    holds = known & ((entries["copies"] > 0) | shadow)
    assert np.array_equal(holds, known & (entries["curve"] >= 0))
    holders = np.bincount(entries["curve"][holds], minlength=len(state.holders))
    assert np.array_equal(
        holders, np.where(np.isin(np.arange(len(holders)), entries["curve"][holds]), state.holders, 0)
    )
    assert head["free_curves"] + (holders > 0).sum() == len(state.holders)
    assert head["shadow_held"] == shadow.sum()
    leaves = np.flatnonzero(shadow & (entries["children"] == 0))
    assert sorted(state.leaves[: int(head["leaves"])].tolist()) == leaves.tolist()
    used = state.curves[entries["curve"][holds]]
    assert np.isfinite(used).all()
    assert (used >= 0).all()
    assert np.isfinite(cache.reals).all()


class Scan(NaivePool):
    """Scores every candidate from the curves that the policy had when the request came."""

    def look(self, simulator: Simulator) -> None:
        state = view(simulator.cache.ints.copy())
        self.by_hazard = bool(state.head[0]["by_hazard"])
        entries = state.entries
        self.known = {
            int(entries["fingerprint"][e]): (float(entries["time"][e]), state.curves[entries["curve"][e]].astype(float))
            for e in np.flatnonzero((entries["fingerprint"] >= 0) & (entries["curve"] >= 0))
        }

    def score(self, slot: Slot) -> float:
        if not self.by_hazard:
            return slot.release
        oldest = self.slots[self.copies(slot.identity)[0]]
        if oldest is not slot:
            return -math.inf
        time, curve = self.known[slot.identity]
        age = self.now - time
        place = 0.0 if age <= 0.5 else min(1.0 + 3.0 * math.log(2.0 * age), BINS - 1.0)
        below = min(int(place), BINS - 2)
        return float(curve[below] + (place - below) * (curve[below + 1] - curve[below]))


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
@settings(max_examples=80, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8), eager=st.booleans())
def test_victims_equal_a_scan_of_all_candidates(policy: Hazard, trace: Trace, extra: int, eager: bool) -> None:
    simulator = Simulator(trace, policy, int(trace.request_blocks.max()) + extra)
    params = policy.space().start()
    if policy.guarded:
        params = params.replace(EAGER if eager else {"guard.window": 100.0})
    naive = Scan(trace, simulator.sessions, policy.name, simulator.num_blocks, {})
    for request in range(trace.num_requests):
        naive.look(simulator)
        simulator.serve(1, params)
        naive.serve(request)
        held = [-1 if slot is None else slot.identity for slot in naive.slots]
        assert simulator.cache.blocks["identity"].tolist() == held
        check_invariants(simulator)
        check_state(simulator)
    assert simulator.hit_blocks.tolist() == naive.hits


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_a_bound_on_a_score_ends_when_a_copy_of_the_block_is_accessed(policy: Hazard) -> None:
    """Within a window, floors of scores hold for a while; in windows of one request, every score is made anew."""
    generator = np.random.default_rng(4)
    builder = TraceBuilder(block_size=2)
    now = 0.0
    chains = [[(int(t), TokenType.USER) for t in generator.integers(0, 1000, 2 * n)] for n in range(4, 14)]
    for _ in range(600):
        chain = chains[int(generator.integers(10))]
        if generator.random() < 0.3:  # a prompt of whole blocks: its last one is made again, and has copies
            chain += [(int(t), TokenType.USER) for t in generator.integers(0, 1000, 2)]
        for _ in range(2):
            now += float(generator.exponential(3.0))
            builder.request(now, list(chain), [(0, TokenType.RESPONSE)] * int(generator.integers(1, 4)))
        del chain[30:]
    trace = builder.trace()
    at_once, anew = (Simulator(trace, policy, 60) for _ in range(2))
    at_once.serve(trace.num_requests)
    while not anew.done:
        anew.serve(1)
    assert np.array_equal(at_once.hit_blocks, anew.hit_blocks)
    assert at_once.cache.blocks["identity"].tolist() == anew.cache.blocks["identity"].tolist()


def gittins(hazard: list[float]) -> list[float]:
    """The index by its definition: over all ages at which to give up."""
    p = [1 - math.sqrt(1 - hazard[b // 2]) for b in range(BINS)]
    curve = []
    for b in range(BINS):
        used, held, reached, best = 0.0, 0.0, 1.0, 0.0
        for k in range(b, BINS):
            used += reached * p[k]
            held += reached * WIDTHS[k] * (1 - p[k] / 2)
            reached *= 1 - p[k]
            best = max(best, used / held)
        curve.append(best)
    return curve


@settings(max_examples=200, deadline=None)
@given(hazard=st.lists(st.floats(1e-9, 0.999), min_size=GROUPS, max_size=GROUPS))
def test_a_curve_is_gittins_index_by_its_definition(hazard: list[float]) -> None:
    room = np.zeros(GROUPS + 2 * BINS)
    room[:GROUPS] = hazard
    curves = np.zeros((1, BINS), np.float32)
    make_curve(room, KINDS["gittins"], False, curves, 0)
    np.testing.assert_allclose(curves[0], gittins(hazard), rtol=1e-5)


def test_before_anything_is_learned_older_is_worse() -> None:
    room = np.zeros(GROUPS + 2 * BINS)
    learner.predict_additive(learner.start(), np.zeros(64, np.uint16), 0, room)
    assert room[0] == pytest.approx(0.15)
    curves = np.zeros((1, BINS), np.float32)
    make_curve(room, KINDS["gittins"], True, curves, 0)
    assert (np.diff(curves[0]) <= 0).all()


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_what_is_learned_does_not_depend_on_later_requests(policy: Hazard) -> None:
    full, cut = tiny_trace(seed=5, requests=300), tiny_trace(seed=5, requests=300)
    count = 170
    cut = replace(
        cut,
        **{
            name: getattr(cut, name)[:count]
            for name in ("arrival", "session", "turn", "prompt_tokens", "output_tokens", "salt", "flags", "phase")
        },
        prompt_start=cut.prompt_start[: count + 1],
        prompt_blocks=cut.prompt_blocks[: cut.prompt_start[count]],
        generated_start=cut.generated_start[: count + 1],
        generated_blocks=cut.generated_blocks[: cut.generated_start[count]],
    )
    num_blocks = int(full.request_blocks.max()) * 3
    a, b = Simulator(full, policy, num_blocks), Simulator(cut, policy, num_blocks)
    a.serve(count)
    b.serve(count)
    assert a.evictions > 100
    assert np.array_equal(a.hit_blocks[:count], b.hit_blocks)
    assert a.cache.ints.tobytes() == b.cache.ints.tobytes()
    assert a.cache.reals.tobytes() == b.cache.reals.tobytes()


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_a_saved_run_goes_on_to_the_bit(policy: Hazard) -> None:
    trace = tiny_trace(seed=6, requests=300)
    num_blocks = int(trace.request_blocks.max()) * 3
    whole, first, second = (Simulator(trace, policy, num_blocks) for _ in range(3))
    whole.serve(150)
    whole.serve(150)
    first.serve(150)
    second.load_state_dict(first.state_dict())
    second.serve(150)
    assert np.array_equal(whole.hit_blocks, second.hit_blocks)
    assert whole.cache.ints.tobytes() == second.cache.ints.tobytes()
    assert whole.cache.reals.tobytes() == second.cache.reals.tobytes()


@settings(max_examples=100, deadline=None)
@given(
    trace=traces(max_requests=40),
    scale=st.sampled_from([0.0, 1e-9, 1.0, 1e9, 1e300]),
    outputs=st.sampled_from([0, 1, 2**31 - 1]),
    data=st.data(),
)
def test_nothing_ever_is_infinite(trace: Trace, scale: float, outputs: int, data: st.DataObject) -> None:
    trace = trace.without_generated()
    trace = replace(trace, arrival=trace.arrival * scale, output_tokens=np.full(trace.num_requests, outputs, np.int32))
    policy = data.draw(st.sampled_from(POLICIES))
    space = policy.space()
    action = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=len(space), max_size=len(space)))
    simulator = Simulator(trace, policy, int(np.diff(trace.prompt_start).max()) + 2)
    simulator.serve(trace.num_requests, space.from_action(action))
    check_state(simulator)


def chain_trace(requests: list[tuple[float, int, int]]) -> Trace:
    """Requests (arrival, which chain, its full blocks); half a block more at the end, so that all are matchable."""
    builder = TraceBuilder(block_size=2)
    for arrival, chain, blocks in requests:
        prompt = [(chain * 10_000 + i, TokenType.USER) for i in range(2 * blocks + 1)]
        builder.request(arrival, prompt, [(0, TokenType.RESPONSE)])
    return builder.trace()


@pytest.mark.parametrize("gap", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("policy", [Hazard(), GuardedHazard()], ids=["hazard", "adaptive"])
def test_popularity_that_ends_is_forgotten(policy: Hazard, gap: float) -> None:
    rounds = 20
    requests = [(i * gap, 0, 64) for i in range(1000)]
    requests += [((1000 + i) * gap, 1 + i % 10, 12) for i in range(10 * rounds)]
    trace = chain_trace(requests)
    hits = {}
    for name, p in (("lru", LRU()), ("ours", policy)):
        simulator = Simulator(trace, p, 128)
        simulator.serve(trace.num_requests)
        hits[name] = int(simulator.hit_blocks[-10:].sum())
    assert hits["ours"] >= 0.95 * hits["lru"]
    assert hits["lru"] > 100


@pytest.mark.parametrize("policy", [Hazard(), GuardedHazard()], ids=["hazard", "adaptive"])
def test_a_class_that_turns_attractive_again_is_kept(policy: Hazard) -> None:
    """Ten chains come back after 4,000 s and lose to fifty that do so after 300 and fill the pool.

    Then these stop, the ten come back after 400 s, and others come once.
    """
    change, end = 60_000.0, 72_000.0
    events: list[tuple[float, int, int]] = []
    for chain in range(50):
        events += [(chain * 6.0 + k * 300.0, chain, 10) for k in range(200)]
    for chain in range(100, 110):
        lag = (chain - 100) * 40.0
        events += [(lag + k * 4000.0, chain, 30) for k in range(15)]
        events += [(change + lag + k * 400.0, chain, 30) for k in range(30)]
    events += [(change + 20.0 + k * 40.0, 1000 + k, 10) for k in range(int((end - change) / 40.0))]
    events.sort()
    trace = chain_trace(events)
    late = np.array([i for i, (at, chain, _) in enumerate(events) if 100 <= chain < 1000 and at >= change])
    early = np.array([i for i, (at, chain, _) in enumerate(events) if 100 <= chain < 1000 and at < change])
    hits = {}
    for name, p in (("lru", LRU()), ("ours", policy)):
        simulator = Simulator(trace, p, 600)
        simulator.serve(trace.num_requests)
        hits[name] = int(simulator.hit_blocks[late[200:]].sum())
        assert simulator.hit_blocks[early].sum() < 0.5 * 30 * len(early), "the class was attractive all along"
    assert hits["lru"] == 30 * 100
    assert hits["ours"] >= 0.8 * hits["lru"]


def test_metadata_is_bounded_and_flat() -> None:
    num_blocks, length, requests = 1024, 64, 15_625  # 1e6 unique blocks
    ids = np.arange(requests * length, dtype=np.int32)
    zeros = np.zeros(requests, np.int32)
    offset = np.tile(np.arange(length, dtype=np.int32), requests)
    trace = Trace(
        block_size=1,
        arrival=np.arange(requests) * 1.0,
        session=zeros - 1,
        turn=zeros - 1,
        prompt_tokens=zeros + length,
        output_tokens=zeros,
        salt=zeros,
        flags=zeros.astype(np.uint8),
        phase=zeros.astype(np.uint8),
        prompt_start=np.arange(requests + 1, dtype=np.int64) * length,
        prompt_blocks=ids,
        generated_start=np.zeros(requests + 1, np.int64),
        generated_blocks=np.empty(0, np.int32),
        parent=np.where(offset == 0, -1, ids - 1).astype(np.int32),
        offset=offset,
        token_type=np.zeros(len(ids), np.uint8),
    )
    simulator = Simulator(trace, GuardedHazard(), num_blocks)
    state = state_of(simulator)
    entries = len(state.entries) + len(state.segments)
    assert entries <= 16 * num_blocks + 1
    assert state.entries.dtype.itemsize <= 64
    assert state.segments.dtype.itemsize + state.levels.shape[1] <= 64
    assert state.rows.shape[1] * state.rows.dtype.itemsize <= 64  # and as much again for the rows of its features
    size = simulator.cache.ints.nbytes
    simulator.serve(requests)
    assert simulator.evictions > 990_000
    assert simulator.cache.ints.nbytes == size
    check_state(simulator)


@pytest.mark.parametrize("num_blocks", [40, 1000, 6000])
def test_where_every_block_is_a_leaf(num_blocks: int) -> None:
    generator = np.random.default_rng(9)
    drawn = generator.zipf(1.2, 15_000) % 12_000
    drawn[::2] = generator.integers(0, 12_000, 7_500)
    trace = chain_trace([(i * 0.05, int(chain), 1) for i, chain in enumerate(drawn)])
    hits = {}
    for policy in (LRU(), Hazard(), GuardedHazard()):
        simulator = Simulator(trace, policy, num_blocks)
        sampled = 0
        while not simulator.done:
            sampled += simulator.serve(1000).sampled_choices
            if policy.name != "lru":
                check_state(simulator)
        hits[policy.name] = int(simulator.hit_blocks.sum())
    assert (sampled > 0) == (num_blocks == 6000)
    assert hits["hazard"] > 0.95 * hits["lru"]
    assert hits["adaptive"] > 0.95 * hits["lru"]


@pytest.mark.parametrize("by_hazard", [True, False], ids=["the pool follows the index", "its shadow does"])
def test_the_index_and_the_shadow_of_lru_hit_what_they_hit_alone(by_hazard: bool) -> None:
    trace = tiny_trace(seed=7, requests=400).without_generated()
    num_blocks = int(trace.request_blocks.max()) * 4
    policy = GuardedHazard()
    stay = {"guard.window": 1e5, "guard.margin": 0.1, "guard.doubt": 4.0, "guard.loss": 0.1}
    params = policy.space().start().replace(stay | (ENOUGH if by_hazard else NEVER))
    simulator = Simulator(trace, policy, num_blocks)
    head = state_of(simulator).head[0]
    head["by_hazard"], head["falls"] = by_hazard, 1e9
    simulator.serve(trace.num_requests, params)
    alone = {}
    for other in (Hazard(), LRU()):
        run = Simulator(trace, other, num_blocks)
        run.serve(trace.num_requests)
        alone[other.name] = int(run.hit_blocks.sum())
    assert head["switches"] == 0
    assert alone["hazard"] != alone["lru"]
    assert simulator.hit_blocks.sum() == alone["hazard" if by_hazard else "lru"]
    assert float(head["advantage"]) == pytest.approx(alone["hazard"] - alone["lru"], rel=0.05, abs=5)


def test_the_guard_goes_over_to_lru_and_back_and_its_shadow_begins_as_the_pool() -> None:
    trace = tiny_trace(seed=11, requests=400)
    policy = GuardedHazard()
    params = policy.space().start().replace(EAGER)
    simulator = Simulator(trace, policy, int(trace.request_blocks.max()) * 3)
    orders = [False]
    for _ in range(trace.num_requests):
        simulator.serve(1, params)
        check_state(simulator)
        state = state_of(simulator)
        orders.append(bool(state.head[0]["by_hazard"]))
        shadow = state.entries["fingerprint"][state.entries["flags"] & IN_SHADOW != 0]
        if orders[-1]:
            assert len(shadow) == 0
        elif orders[-2]:
            resident = simulator.cache.blocks["identity"]
            assert set(shadow.tolist()) == set(resident[resident >= 0].tolist())
    assert orders[1]
    changes = sum(a != b for a, b in itertools.pairwise(orders))
    assert changes == state_of(simulator).head[0]["switches"] >= 3


def test_the_index_takes_over_with_a_request_that_its_shadow_alone_remembered() -> None:
    """Between two requests for chain 0 more pass than are remembered; only the shadow still has it."""
    requests, once = [], 1
    for _ in range(12):
        requests.append(0)
        requests += range(once, once + 100)
        once += 100
    trace = chain_trace([(i * 1.0, chain, 4) for i, chain in enumerate(requests)])
    policy = GuardedHazard()
    params = policy.space().start().replace({"guard.regret": 1.0, "guard.misses": 5.0})
    simulator = Simulator(trace, policy, 24)
    orders = []
    for _ in requests:
        simulator.serve(1, params)
        check_state(simulator)
        orders.append(bool(state_of(simulator).head[0]["by_hazard"]))
    first = orders.index(True)
    assert requests[first] == 0
    assert simulator.hit_blocks[first] == 0 < simulator.hit_blocks[first + 101]


@pytest.mark.parametrize("params", [{"guard.regret": 0.3, "guard.misses": 1000.0}, {"guard.misses": 20.0}])
def test_the_index_waits_for_what_there_is_to_gain(params: dict[str, float]) -> None:
    """A loop over more chains than fit: LRU has none of them, whether few and long or many and short."""
    trace = chain_trace([(i * 1.0, i % 12, 8) for i in range(200)])
    policy = GuardedHazard()
    simulator = Simulator(trace, policy, 80)
    kept, asked, regret, misses = 1.0 - 1.0 / 4000.0, 0.0, 0.0, 0.0
    for request in range(trace.num_requests):
        simulator.serve(1, policy.space().start().replace(params))
        missed = 8.0 if request >= 12 else 0.0
        asked, regret, misses = kept * asked + 8, kept * regret + missed, kept * misses + missed**2
        share, least = params.get("guard.regret", 0.1), params["guard.misses"]
        enough = regret >= share * asked or regret**2 > least * misses
        head = state_of(simulator).head[0]
        assert (head["regret"], head["misses"]) == pytest.approx((regret, misses))
        if not enough:
            assert not head["by_hazard"]
        if head["by_hazard"]:
            break
    assert head["by_hazard"]


def test_an_index_that_is_wrong_for_good_costs_little() -> None:
    """Hazards that can't be unlearned and rise with age, so that what was used last goes first; LRU would hit most."""
    trace = chain_trace([(i * 1.0, i // 300 * 100 + i % 30, 4) for i in range(12_000)])
    hits = {}
    for policy in (LRU(), Hazard(), GuardedHazard()):
        simulator = Simulator(trace, policy, 160)
        if policy.name != "lru":
            reals = simulator.cache.reals
            reals[learner.BASE : learner.BASE_SQUARES] = np.linspace(-9.0, 6.0, GROUPS)
            reals[learner.BASE_SQUARES : learner.SEEN] = 1e18
            reals[learner.SEEN : learner.WEIGHTS] = 1e9
            reals[learner.WEIGHTS :].reshape(-1, learner.ROW)[:, learner.SQUARES :] = 1e18
        simulator.serve(trace.num_requests)
        hits[policy.name] = int(simulator.hit_blocks.sum())
    asked = int(trace.matchable_blocks.sum())
    assert hits["hazard"] < hits["lru"] - 0.2 * asked
    assert hits["adaptive"] > hits["lru"] - 0.01 * asked


def test_a_lineage_carries_its_gaps_and_its_age() -> None:
    times = [0.0, 3.0, 23.0, 223.0]
    trace = chain_trace([(at, 0, 4 + i) for i, at in enumerate(times)])
    simulator = Simulator(trace, Hazard(), 64)
    simulator.serve(trace.num_requests)
    state = state_of(simulator)
    # The last segment of each request, whose blocks this lineage alone has had.
    last = [max(np.flatnonzero(state.segments["time"] == at)) for at in times[1:]]
    gaps = [1 + log_seconds_level(math.log(gap)) for gap in (3.0, 20.0, 200.0)]
    assert state.levels[last, GAP].tolist() == gaps
    assert state.levels[last, GAP_BEFORE].tolist() == [1, *gaps[:2]]
    ages = [1 + log_seconds_level(math.log(age)) for age in times[1:]]
    assert state.levels[last, SINCE].tolist() == ages


@pytest.mark.parametrize("sees", SIGHTS)
def test_oracles_are_marked_and_run(sees: str) -> None:
    policy = SeeingHazard(sees)
    assert policy.oracle
    trace = tiny_trace(seed=8, requests=200)
    simulator = Simulator(trace, policy, int(trace.request_blocks.max()) * 3)
    simulator.serve(trace.num_requests)
    assert len(set(state_of(simulator).levels[:, FORESIGHT].tolist())) > 1
    check_state(simulator)


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="gittins"):
        Hazard(index="gitins")
