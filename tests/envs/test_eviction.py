"""The eviction environment: Gymnasium's contract, masks, rewards, features, determinism, and what it refuses."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.queued_lru import QueuedLRU
from saecache_rl.engines.capacity import smallest_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.envs import EvictionLayout, PrefixCacheEvictionEnv
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import QUEUE_NAMES, TOKEN_TYPE_NAMES, TokenType
from saecache_rl.workloads.trace import Trace
from tests.envs.support import check_colon_form, check_hash_seed
from tests.support import TraceBuilder, tiny_trace

ID = "SAECache/PrefixCacheEviction-v0"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return tiny_trace(0, 300)


def make(trace: Trace, **options: Any) -> PrefixCacheEvictionEnv:
    options.setdefault("num_blocks", 2 * smallest_capacity(trace))
    return PrefixCacheEvictionEnv(trace, **options)


def rollout(env: Any, seed: int, steps: int = 10_000) -> bytes:
    """Random unmasked actions from `seed` until the end; all that comes back, as bytes."""
    generator = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        action = generator.choice(np.flatnonzero(env.unwrapped.action_masks()))
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(observation.tobytes() + np.float64(reward).tobytes() + bytes([terminated, truncated]))
        seen.append(info["action_mask"].tobytes())
        if truncated:
            break
    return b"".join(seen)


@pytest.mark.parametrize("victim", ["run", "block"])
@pytest.mark.parametrize("candidates", [1, 4, 64])
@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_gymnasium_check_env_is_clean(trace: Trace, victim: str, candidates: int, render_mode: str | None) -> None:
    options = {"workload": trace, "num_blocks": 2 * smallest_capacity(trace), "victim": victim}
    env = gymnasium.make(ID, candidates=candidates, render_mode=render_mode, disable_env_checker=True, **options)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.rl
@pytest.mark.filterwarnings("error")
def test_stable_baselines3_check_env_is_clean(trace: Trace) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(make(trace), warn=True)


@pytest.mark.rl
def test_maskable_ppo_learns_on_it_and_never_takes_a_masked_action(trace: Trace) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    env = make(trace, candidates=16)
    model = contrib.MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=32, seed=0, device="cpu").learn(256)
    observation, info = env.reset(seed=0)
    over = False
    while not over:
        action, _ = model.predict(observation, action_masks=env.action_masks())
        observation, _, _, over, info = env.step(action)
    assert info["masked_actions"] == 0
    assert info["stats"].requests == trace.num_requests


@pytest.mark.parametrize("victim", ["run", "block"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_always_taking_the_first_candidate_is_lru(seed: int, victim: str) -> None:
    trace = tiny_trace(seed, 300)
    env = make(trace, victim=victim)
    _, info = env.reset(seed=0)
    assert "stats" not in info
    rewards, over = [], False
    while not over:
        _, reward, terminated, over, info = env.step(0)
        assert isinstance(reward, float)
        assert not terminated
        assert ("stats" in info) == over
        rewards.append(reward)
    lru = Simulator(trace, LRU(), env.num_blocks)
    expected = lru.serve(300)
    assert np.array_equal(env.engine.hit_blocks, lru.hit_blocks)
    assert info["stats"].token_hit_ratio == expected.token_hit_ratio
    assert info["stats"] == env.stats() == Simulator(trace, QueuedLRU(), env.num_blocks).serve(300)
    assert sum(rewards) == pytest.approx(expected.token_hit_ratio, abs=1e-12)
    if victim == "block":
        assert len(rewards) == expected.evictions
    else:
        assert len(rewards) < expected.evictions / 3


def test_rewards_come_when_a_request_hits(trace: Trace) -> None:
    env = make(trace)
    env.reset()
    rewarded, over = 0, False
    while not over:
        _, reward, _, over, _ = env.step(0)
        # The waiting request has been matched: its hits count, whatever is evicted for it.
        hit_tokens = int(env.engine.hit_tokens[: env.engine.position + 1].sum())
        assert reward == (hit_tokens - rewarded) / int(trace.prompt_tokens.sum())
        rewarded = hit_tokens


def test_choices_matter(trace: Trace) -> None:
    ratios = set()
    for seed in range(3):
        env = make(trace)
        env.reset()
        rollout(env, seed)
        ratios.add(env.stats().token_hit_ratio)
    assert len(ratios) == 3


def test_masks_are_what_gymnasium_and_sb3_contrib_expect(trace: Trace) -> None:
    env = make(trace, candidates=24)
    assert env.action_masks().tolist() == [True] + [False] * 23
    _, info = env.reset(seed=0)
    env.action_space.seed(0)
    masked = over = False
    while not over:
        masks = env.action_masks()
        assert masks.dtype == np.bool_
        assert masks.shape == (24,)
        assert masks.sum() == env.engine.num_candidates
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == masks.tolist()
        masked |= not masks.all()
        action = env.action_space.sample(info["action_mask"])
        assert masks[action]
        _, _, _, over, info = env.step(action)
    assert masked
    assert info["masked_actions"] == 0
    assert info["action_mask"].tolist() == [1] + [0] * 23


def test_a_masked_action_evicts_the_first_candidate_and_is_counted(trace: Trace) -> None:
    one, other = make(trace, candidates=100), make(trace, candidates=100)
    one.reset()
    other.reset()
    for step in range(1, 50):
        seen, reward, *_, info = one.step(99)
        expected, same, *_ = other.step(0)
        assert seen.tobytes() == expected.tobytes()
        assert reward == same
        assert info["masked_actions"] == step
    assert one.reset()[1]["masked_actions"] == 0


@pytest.mark.parametrize("action", [-1, 16, 1.0, np.float32(1.0), float("nan"), None, True, np.array([3]), "0"])
def test_what_is_no_candidate_is_refused(trace: Trace, action: Any) -> None:
    env = make(trace)
    env.reset()
    with pytest.raises(InputError, match="give the number of a candidate, 0 to 15"):
        env.step(action)
    for good in (0, np.int64(1), np.array(2)):
        env.step(good)


def test_a_step_needs_a_reset_before_and_after(trace: Trace) -> None:
    env = make(trace, candidates=1)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(0)
    env.reset()
    first = rollout(env, 0)
    for _ in range(2):
        with pytest.raises(ResetNeeded, match="every request has been served"):
            env.step(0)
    env.reset(seed=5)
    assert rollout(env, 0) == first
    with pytest.raises(InputError, match="sed"):
        env.reset(options={"sed": 1})


def test_the_same_actions_give_the_same_run_to_the_bit(trace: Trace) -> None:
    one, other = make(trace), make(trace)
    assert one.reset(seed=1)[0].tobytes() == other.reset(seed=2)[0].tobytes()
    expected = rollout(one, 5)
    assert rollout(other, 5) == expected
    one.reset(seed=1)
    assert rollout(one, 5) == expected
    one.reset()
    assert rollout(one, 6) != expected


@pytest.mark.parametrize("steps", [0, 77])
@pytest.mark.parametrize("victim", ["run", "block"])
def test_a_pickled_environment_continues_to_the_bit(trace: Trace, steps: int, victim: str) -> None:
    env = make(trace, victim=victim)
    fresh = pickle.loads(pickle.dumps(env))
    env.reset(seed=1)
    fresh.reset(seed=1)
    if steps:
        assert rollout(env, 1, steps) == rollout(fresh, 1, steps)
    copy = pickle.loads(pickle.dumps(env))
    expected = rollout(env, 9)
    assert rollout(copy, 9) == expected
    assert copy.stats() == env.stats()
    assert rollout(fresh, 9) == expected
    with pytest.raises(ResetNeeded):
        pickle.loads(pickle.dumps(env)).step(0)


def test_its_spec_pickles_and_makes_it_again(trace: Trace) -> None:
    env = gymnasium.make(ID, workload=trace, num_blocks=2 * smallest_capacity(trace), candidates=4)
    again = pickle.loads(pickle.dumps(env.spec)).make()
    env.reset(seed=0)
    again.reset(seed=0)
    assert rollout(env, 3) == rollout(again, 3)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectorised(trace: Trace, mode: str) -> None:
    options = {"workload": trace, "num_blocks": 2 * smallest_capacity(trace), "candidates": 6}
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode=mode, **options)
    try:
        _, infos = envs.reset(seed=0)
        single = gymnasium.make(ID, **options)
        single.reset(seed=0)
        generator = np.random.default_rng(0)
        over = False
        while not over:
            action = generator.choice(np.flatnonzero(infos["action_mask"][0]))
            observations, rewards, terminated, truncated, infos = envs.step(np.array([action, action]))
            observation, reward, _, over, info = single.step(action)
            assert (observations == observation).all()
            assert (rewards == reward).all()
            assert not terminated.any()
            assert truncated.tolist() == [over, over]
            assert (infos["action_mask"] == info["action_mask"]).all()
        assert infos["stats"][1] == info["stats"]
        observations, *_ = envs.step(np.array([0, 0]))  # resets by itself
        assert (observations == single.reset(seed=0)[0]).all()
    finally:
        envs.close()


@pytest.mark.parametrize("hint", ["lineage", "hint"])
def test_every_feature_is_what_its_name_says(trace: Trace, hint: str) -> None:
    env = make(trace, sessions=hint, victim="block")
    layout, sessions = env.layout, env.sessions
    observation, _ = env.reset()
    generator, over, checked = np.random.default_rng(0), False, 0

    def log(x: float) -> Any:
        return pytest.approx(np.log1p(x) / 16, abs=1e-6)

    while not over:
        seen, cache, now = layout.read(observation), env.engine.cache, env.engine.position
        candidates = env.engine.candidates
        if checked % 7 == 0:
            for i, block in enumerate(candidates):
                of = {f.name: seen[f"candidate.{i}.{f.name}"] for f in layout.features}
                last = int(block["access"]) - 1
                assert of["present"] == 1
                assert trace.arrival[last] == block["time"]
                assert of["log_age"] == log(trace.arrival[now] - trace.arrival[last])
                assert of["log_requests_ago"] == log(now - last)
                assert of["log_accesses"] == log(block["count"])
                assert of["log_offset"] == log(block["offset"])
                assert of["log_turn"] == log(sessions.turn[last])
                assert of["log_gap"] == log(sessions.gap_seconds[last] if sessions.turn[last] else 0.0)
                assert of["agentic"] == sessions.agentic[last]
                assert of["ended_for_tool"] == (trace.flags[last] & 2) // 2
                assert of["generated"] == block["flags"] & 1
                assert of["shared"] == (block["flags"] & 2) // 2
                assert of["spare"] == (np.sum(cache.blocks["identity"] == block["identity"]) > 1)
                assert [q for q in QUEUE_NAMES if of[f"queue.{q}"]] == [QUEUE_NAMES[block["queue"]]]
                assert [t for t in TOKEN_TYPE_NAMES if of[f"type.{t}"]] == [TOKEN_TYPE_NAMES[block["token_type"]]]
            assert seen["log_needed"] == log(env.engine.needed)
            assert seen["log_leaves"] == log((cache.blocks["position"] >= 0).sum())
            assert seen["log_prompt_tokens"] == log(trace.prompt_tokens[now])
            hits = env.engine.hit_blocks
            assert seen["request_hit_ratio"] == pytest.approx(hits[now] / max(trace.matchable_blocks[now], 1), abs=1e-6)
            assert seen["log_turn"] == log(sessions.turn[now])
            ratio = env.engine.hit_tokens[: now + 1].sum() / trace.prompt_tokens[: now + 1].sum()
            assert seen["token_hit_ratio"] == pytest.approx(ratio, abs=1e-6)
            for q, queue in enumerate(QUEUE_NAMES):
                assert seen[f"held.{queue}"] == pytest.approx(env.engine.held[q] / env.num_blocks, abs=1e-6)
        part, shared = layout.split(observation)
        assert not part[len(candidates) :].any()
        assert shared.tolist() == observation[-len(layout.shared) :].tolist()
        observation, _, _, over, _ = env.step(generator.integers(len(candidates)))
        checked += 1
    assert checked > 100


def test_a_run_is_told_by_its_length() -> None:
    """A prompt of 6 blocks, and one that shares its first 2 blocks and goes on for 3 of its own."""
    builder = TraceBuilder(2)
    tokens = [(i, TokenType.USER) for i in range(12)]
    builder.request(0.0, tokens, [])
    builder.request(1.0, tokens[:4] + [(100 + i, TokenType.USER) for i in range(6)], [])
    builder.request(2.0, [(200 + i, TokenType.USER) for i in range(4)], [])
    env = PrefixCacheEvictionEnv(builder.trace(), num_blocks=9, candidates=4, victim="block")
    observation, _ = env.reset()
    seen = env.layout.read(observation)
    assert [round(np.expm1(16 * seen[f"candidate.{i}.log_run"])) for i in range(2)] == [4, 3]
    seen = env.layout.read(env.step(0)[0])
    assert [round(np.expm1(16 * seen[f"candidate.{i}.log_run"])) for i in range(2)] == [3, 3]


def test_the_layout_names_every_entry(trace: Trace) -> None:
    env = make(trace, candidates=3)
    layout = EvictionLayout.of(3)
    assert env.layout == layout
    assert len(set(layout.names)) == len(layout) == 3 * len(layout.features) + len(layout.shared)
    assert env.observation_space.shape == (len(layout),)
    assert all(entry.meaning for entry in layout.entries)
    batch = np.arange(2 * len(layout)).reshape(2, -1)
    candidates, shared = layout.split(batch)
    assert candidates.shape == (2, 3, len(layout.features))
    assert candidates[1, 2, 1] == batch[1, layout.index["candidate.2.log_age"]]
    assert shared[1, 0] == batch[1, layout.index["log_needed"]]


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_every_observation_lies_in_its_space(num_blocks: int) -> None:
    trace = tiny_trace(4, 200)
    env = make(trace, num_blocks=num_blocks * smallest_capacity(trace))
    observation, info = env.reset()
    env.action_space.seed(0)
    over = False
    while not over:
        assert observation.dtype == np.float32
        assert env.observation_space.contains(observation)
        observation, _, _, over, info = env.step(env.action_space.sample(info["action_mask"]))
    assert env.observation_space.contains(observation)


def test_a_cut_trace_gives_the_same_leading_observations(trace: Trace) -> None:
    whole = make(trace)
    cut = PrefixCacheEvictionEnv(trace.head(160), num_blocks=whole.num_blocks)
    observation, expected = whole.reset()[0], cut.reset()[0]
    over, steps = False, 0
    while not over:
        assert observation.tobytes() == expected.tobytes()
        action = steps % cut.engine.num_candidates
        observation, *_ = whole.step(action)
        expected, _, _, over, _ = cut.step(action)
        steps += 1
    assert steps > 100


def test_nothing_tells_how_long_the_reply_will_be() -> None:
    """Two traces that differ only in the length and end of the last reply look alike until the prompt has its room."""

    def observations(reply: int) -> list[bytes]:
        builder = TraceBuilder(2)
        for i in range(4):
            builder.request(float(i), [(100 * i + t, TokenType.USER) for t in range(8)], [])
        tokens = [(900 + t, TokenType.RESPONSE) for t in range(reply)]
        builder.request(9.0, [(800 + t, TokenType.USER) for t in range(8)], tokens, flags=2 if reply > 3 else 0)
        env = PrefixCacheEvictionEnv(builder.trace(), num_blocks=16, candidates=4, victim="block")
        seen, over = [env.reset()[0].tobytes()], False
        while not over:
            observation, _, _, over, _ = env.step(0)
            seen.append(observation.tobytes())
        return seen

    short, long = observations(3), observations(9)
    assert len(long) > len(short) > 4
    assert long[: len(short) - 1] == short[:-1]


def test_renders(trace: Trace) -> None:
    env = make(trace, render_mode="ansi", candidates=5)
    env.reset()
    lines = env.render().splitlines()
    assert lines[0] == f"request {env.engine.position} needs {env.engine.needed} more slots; 5 candidates"
    assert len(lines) == 2 + 5
    assert [int(line.split()[0]) for line in lines[2:]] == list(range(5))
    assert lines[2].split()[1:3] == [
        QUEUE_NAMES[env.engine.candidates[0]["queue"]],
        TOKEN_TYPE_NAMES[env.engine.candidates[0]["token_type"]],
    ]
    rollout(env, 0)
    assert "0 candidates" in env.render()
    assert make(trace).render() is None


def test_a_predictor_decides_the_queue_of_first_turns(trace: Trace) -> None:
    never, always = make(trace), make(trace, predictor="always")
    assert never.reset()[0].tobytes() != always.reset()[0].tobytes()
    assert always.engine.held[0] < never.engine.held[0]


def test_the_colon_form_of_the_id_imports_the_package() -> None:
    check_colon_form(ID, 100, "200")


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    check_hash_seed(__name__)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_blocks": 3}, "num_blocks=3: the largest request of tiny alone needs"),
        ({"num_blocks": 10**6}, "num_blocks=1000000: tiny never fills it"),
        ({"num_blocks": "autom"}, "did you mean 'auto'"),
        ({"candidates": 0}, "candidates=0"),
        ({"candidates": 2.5}, "candidates=2.5"),
        ({"candidates": True}, "candidates=True"),
        ({"candidates": 10**6}, "give no more"),
        ({"victim": "blok"}, "victim=blok: unknown; did you mean 'block'"),
        ({"engine": "vllm"}, "PrefixCacheTuning-v0"),
        ({"engine": "vllm_cpu_tiny"}, "PrefixCacheTuning-v0"),
        ({"engine": {"name": "vllm"}}, "PrefixCacheTuning-v0"),
        ({"engine": "simulater"}, "did you mean 'simulator'"),
        ({"sessions": "lineages"}, "lineage"),
        ({"predictor": 3}, "no predictor"),
        ({"render_mode": "rgb_array"}, "render_mode=rgb_array"),
    ],
)
def test_impossible_values_are_refused_by_name(trace: Trace, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        make(trace, **options)
    assert "\n" not in str(caught.value)
