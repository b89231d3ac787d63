"""The tuning environment: Gymnasium's contract, determinism, pickling, vectorisation, and what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policies.unicache import UniCache
from saecache_rl.engines.capacity import auto_capacity, smallest_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.envs import ObservationLayout, PrefixCacheTuningEnv
from saecache_rl.errors import InputError
from saecache_rl.predictor import TrueAnswer
from saecache_rl.workloads.trace import Trace
from tests.envs.support import ROOT, check_colon_form, check_hash_seed
from tests.support import tiny_trace

ID = "SAECache/PrefixCacheTuning-v0"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return tiny_trace(0, 300)


def make(trace: Trace, **options: Any) -> PrefixCacheTuningEnv:
    options.setdefault("num_blocks", 2 * smallest_capacity(trace))
    return PrefixCacheTuningEnv(trace, window=options.pop("window", 40), **options)


def rollout(env: Any, seed: int, steps: int = 100) -> bytes:
    """Random actions from `seed` until the end; all that comes back, as bytes."""
    generator = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        action = generator.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(observation.tobytes() + np.float64(reward).tobytes() + bytes([terminated, truncated]))
        if truncated:
            break
    return b"".join(seen)


@pytest.mark.parametrize("policy", [SAECache, UniCache, LRU])
@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_gymnasium_check_env_is_clean(trace: Trace, policy: type, render_mode: str | None) -> None:
    options = {"workload": trace, "num_blocks": 2 * smallest_capacity(trace), "window": 20, "policy": policy()}
    env = gymnasium.make(ID, render_mode=render_mode, disable_env_checker=True, **options)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.rl
@pytest.mark.filterwarnings("error")
def test_stable_baselines3_check_env_is_clean(trace: Trace) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(make(trace), warn=True)


def test_one_step_serves_one_window_and_reports_it(trace: Trace) -> None:
    env = make(trace, window=70)
    _, info = env.reset(seed=0)
    assert info["stats"].requests == 0
    served = []
    for step in range(5):
        observation, reward, terminated, truncated, info = env.step(np.zeros(env.action_space.shape, np.float32))
        stats = info["stats"]
        assert isinstance(stats, WindowStats)
        assert stats.window == step
        assert reward == stats.token_hit_ratio
        assert isinstance(reward, float)
        assert not terminated
        assert truncated == (step == 4)
        assert observation[env.layout.index["token_hit_ratio"]] == np.float32(stats.token_hit_ratio)
        served.append(stats.requests)
    assert served == [70, 70, 70, 70, 20]
    for _ in range(2):
        with pytest.raises(ResetNeeded, match="reset"):
            env.step(np.zeros(env.action_space.shape, np.float32))
    env.reset()
    assert env.engine.position == 0


def test_a_step_before_reset_is_refused(trace: Trace) -> None:
    with pytest.raises(ResetNeeded):
        make(trace).serve(None)


def test_serve_applies_parameters_exactly_and_equals_the_engine(trace: Trace) -> None:
    env = make(trace)
    env.reset(seed=0)
    engine = Simulator(trace, SAECache(), env.num_blocks)
    params = env.param_space.start().replace({"alpha.chat": 2.5, "gamma": 3.3})
    while not engine.done:
        expected = engine.serve(40, params)
        _, reward, _, truncated, info = env.serve(params)
        assert info["params"] is params
        assert reward == expected.token_hit_ratio
    assert truncated
    assert (env.engine.hit_tokens == engine.hit_tokens).all()


def test_same_actions_same_run_to_the_bit(trace: Trace) -> None:
    one, other = make(trace), make(trace)
    one.reset(seed=1)
    other.reset(seed=2)
    expected = rollout(one, 5)
    assert rollout(other, 5) == expected
    one.reset(seed=1)
    assert rollout(one, 5) == expected


def test_actions_matter(trace: Trace) -> None:
    env = make(trace)
    env.reset()
    first = rollout(env, 5)
    env.reset()
    assert rollout(env, 6) != first


@pytest.mark.parametrize("steps", [0, 3])
def test_a_pickled_environment_continues_to_the_bit(trace: Trace, steps: int) -> None:
    env = make(trace)
    fresh = pickle.loads(pickle.dumps(env))
    env.reset(seed=1)
    fresh.reset(seed=1)
    if steps:
        assert rollout(env, 1, steps) == rollout(fresh, 1, steps)
    copy = pickle.loads(pickle.dumps(env))
    expected = rollout(env, 9)
    assert rollout(copy, 9) == expected
    assert rollout(fresh, 9) == expected
    with pytest.raises(ResetNeeded):
        pickle.loads(pickle.dumps(env)).serve(None)


def test_its_spec_pickles_and_makes_it_again(trace: Trace) -> None:
    env = gymnasium.make(ID, workload=trace, num_blocks=2 * smallest_capacity(trace), window=50)
    again = pickle.loads(pickle.dumps(env.spec)).make()
    env.reset(seed=0)
    again.reset(seed=0)
    assert rollout(env, 3) == rollout(again, 3)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectorised(trace: Trace, mode: str) -> None:
    options = {"workload": trace, "num_blocks": 2 * smallest_capacity(trace), "window": 100}
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode=mode, **options)
    try:
        envs.reset(seed=0)
        single = gymnasium.make(ID, **options)
        single.reset(seed=0)
        generator = np.random.default_rng(0)
        for step in range(3):
            action = generator.uniform(-1, 1, envs.single_action_space.shape).astype(np.float32)
            observations, rewards, terminated, truncated, infos = envs.step(np.stack([action, action]))
            observation, reward, _, _, info = single.step(action)
            assert (observations == observation).all()
            assert (rewards == reward).all()
            assert not terminated.any()
            assert truncated.tolist() == [step == 2] * 2
            assert infos["stats"][1].hit_tokens == info["stats"].hit_tokens
        observations, *_ = envs.step(np.stack([action, action]))  # resets by itself
        assert (observations == single.reset(seed=0)[0]).all()
    finally:
        envs.close()


def test_the_layout_names_every_entry(trace: Trace) -> None:
    env = make(trace)
    layout = ObservationLayout.of(env.param_space)
    assert layout == env.layout
    assert len(set(layout.names)) == len(layout)
    assert env.observation_space.shape == (len(layout),)
    assert np.isfinite(env.observation_space.low).all()
    assert np.isfinite(env.observation_space.high).all()
    env.reset()
    observation, _, _, _, info = env.step(np.full(env.action_space.shape, 0.5, np.float32))
    seen, stats = layout.read(observation), info["stats"]
    assert seen["param.gamma"] == pytest.approx(0.5)
    assert seen["block_hit_ratio"] == pytest.approx(stats.block_hit_ratio)
    assert seen["log_evictions"] == pytest.approx(np.log1p(stats.evictions) / 32)
    assert seen["queue_held.chat"] == pytest.approx(stats.queue_held[2] / env.num_blocks)
    assert seen["type_hit_ratio.system"] == pytest.approx(stats.type_hits[0] / stats.type_accesses[0])
    assert seen["gap_mean.agentic"] == pytest.approx(stats.gap_log_sum[1] / stats.gap_count[1] / 12)


def test_every_observation_lies_in_its_space(trace: Trace) -> None:
    env = make(trace, window=7)
    env.reset()
    env.action_space.seed(0)
    truncated = False
    while not truncated:
        observation, _, _, truncated, _ = env.step(env.action_space.sample())
        assert observation.dtype == np.float32
        assert env.observation_space.contains(observation)


def test_a_cut_trace_gives_the_same_leading_observations(trace: Trace) -> None:
    whole, cut = make(trace), PrefixCacheTuningEnv(trace.head(160), num_blocks=2 * smallest_capacity(trace), window=40)
    assert whole.reset()[0].tobytes() == cut.reset()[0].tobytes()
    assert rollout(whole, 2, 4) == rollout(cut, 2, 4)[:-1] + b"\0"  # cut alone is truncated


def test_renders(trace: Trace) -> None:
    env = make(trace, render_mode="ansi")
    env.reset()
    env.serve(None)
    text = env.render()
    assert "structural" in text
    assert "tool_output" in text
    assert str(env.engine.held.sum()) in text
    picture = make(trace, render_mode="rgb_array")
    picture.reset()
    before = picture.render()
    picture.serve(None)
    after = picture.render()
    assert after.dtype == np.uint8
    assert after.shape == before.shape
    assert after.ndim == 3
    assert (before != after).any()
    assert make(trace).render() is None


def test_the_capacity_is_found_from_the_trace(trace: Trace) -> None:
    assert make(trace, num_blocks="auto").num_blocks == auto_capacity(trace)
    assert make(trace, num_blocks=float(smallest_capacity(trace))).num_blocks == smallest_capacity(trace)


def test_workloads_by_name_by_mapping_and_inside_an_application() -> None:
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    mapping = {"_target_": "tests.support.tiny_trace", "seed": 3, "requests": 100}
    env = PrefixCacheTuningEnv(mapping, predictor="true_answer")
    assert env.trace.digest == tiny_trace(3, 100).digest
    assert isinstance(env.predictor, TrueAnswer)
    with initialize_config_module("saecache_rl.conf", version_base="1.3"):
        running = GlobalHydra.instance().hydra
        PrefixCacheTuningEnv(mapping, predictor="never")
        assert GlobalHydra.instance().hydra is running
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("name", ["chat", "agentic_shift"])
def test_generated_workloads_by_name(name: str) -> None:
    env = PrefixCacheTuningEnv(name)
    assert env.trace.name == name
    env.reset()
    assert env.serve(None)[4]["stats"].requests == 100


def test_the_colon_form_of_the_id_imports_the_package() -> None:
    check_colon_form(ID, 50, "'auto'", "import saecache_rl, importlib\nimportlib.reload(saecache_rl)\n")


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, saecache_rl\n"
        "heavy = {'numba', 'scipy', 'wandb', 'hydra', 'torch', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imports {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    check_hash_seed(__name__)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"num_blocks": -5}, "num_blocks=-5"),
        ({"num_blocks": float("nan")}, "num_blocks=nan"),
        ({"num_blocks": float("inf")}, "num_blocks=inf"),
        ({"num_blocks": 1000.5}, "num_blocks=1000.5"),
        ({"num_blocks": True}, "num_blocks=True"),
        ({"num_blocks": None}, "num_blocks=None"),
        ({"num_blocks": 3}, "num_blocks=3: the largest request of tiny alone needs"),
        ({"num_blocks": "autom"}, "num_blocks=autom.*did you mean 'auto'"),
        ({"window": 0}, "window=0"),
        ({"window": float("nan")}, "window=nan"),
        ({"window": "100"}, "window=100"),
        ({"engine": "vlm"}, "engine=vlm: unknown; did you mean 'vllm'"),
        ({"engine": "simulater"}, "did you mean 'simulator'"),
        ({"reward": "ttft"}, "instant clock has no time to first token"),
        ({"reward": "hits"}, "reward=hits: unknown"),
        ({"sessions": "lineages"}, "lineage"),
        ({"predictor": "logistics"}, "did you mean 'logistic'"),
        ({"predictor": 3}, "no predictor"),
        ({"policy": "lru"}, "policy"),
        ({"render_mode": "human"}, "render_mode=human"),
    ],
)
def test_impossible_values_are_refused_by_name(trace: Trace, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        make(trace, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("agentic_shft", "no workload 'agentic_shft'; did you mean 'agentic_shift'"),
        ({"requests": 5}, "_target_"),
        ({"_target_": "tests.support.tiny_trace", "request": 5}, "tiny_trace"),
        ({"_target_": "tests.support.no_such"}, "no_such"),
        ({"_target_": "builtins.dict"}, "expected a Trace"),
    ],
)
def test_wrong_workloads_are_refused_by_name(workload: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        PrefixCacheTuningEnv(workload)
    assert "\n" not in str(caught.value)


def test_an_error_of_a_workload_itself_comes_through() -> None:
    with pytest.raises(InputError, match="no such file"):
        PrefixCacheTuningEnv(
            {
                "_target_": "saecache_rl.workloads.trace.Trace.load",
                "path": {"_target_": "pathlib.Path", "_args_": ["/nowhere/at/all"]},
            }
        )


def test_a_broken_action_and_unknown_reset_options_are_refused(trace: Trace) -> None:
    env = make(trace)
    env.reset()
    with pytest.raises(InputError, match="not finite"):
        env.step(np.full(env.action_space.shape, np.nan, np.float32))
    with pytest.raises(InputError, match="shape"):
        env.step(np.zeros(3, np.float32))
    with pytest.raises(InputError, match="sed"):
        env.reset(options={"sed": 1})
