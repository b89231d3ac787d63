"""The live engine: the simulator's hits, vLLM's outputs, nothing left behind. One engine at a time, shared by tests."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saecache_rl.cache.policies.hazard.policy import GuardedHazard
from saecache_rl.cache.policies.lpc import LPC
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.optimum import Optimum
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.live import LiveEngine
from saecache_rl.engines.vllm.live_settings import LiveSettings
from saecache_rl.engines.vllm.recorded import Recorded, victims_by_request
from saecache_rl.engines.vllm.scale import scaled
from saecache_rl.engines.vllm.serving import Serving
from saecache_rl.envs.tuning import PrefixCacheTuningEnv
from saecache_rl.errors import InputError
from saecache_rl.workloads.trace import Trace
from tests.engines.vllm import support
from tests.support import tiny_trace

pytestmark = pytest.mark.live

OVERLAPPING = LiveSettings(
    name="test",
    max_model_len=2048,
    dtype="float32",
    enforce_eager=True,
    loop="open",
    speed=1e6,
    max_num_seqs=4,
    environment=support.ENVIRONMENT,
)
ONE_BY_ONE = replace(OVERLAPPING, loop="one_by_one")
TRACE = scaled(tiny_trace(0, 80), 32, 2048)
BLOCKS = 71


class Engine:
    """A started engine and what drives it."""

    def __init__(self, policy: Policy | None) -> None:
        self.live = LiveEngine(TRACE, policy, BLOCKS, settings=OVERLAPPING)
        self.live.reset()
        assert self.live._model is not None
        self.model = self.live._model

    def over(self, policy: Policy | None, settings: LiveSettings = ONE_BY_ONE, **options: Any) -> LiveEngine:
        engine = LiveEngine(TRACE, policy, BLOCKS, settings=settings, model=self.model, **options)
        engine.reset()
        return engine

    def greedy(self, trace: Trace = TRACE) -> list[list[int]]:
        """What the model itself says to each of 24 prompts, four at a time."""
        from vllm import SamplingParams

        from saecache_rl.engines.vllm.tokens import request_tokens

        self.model.empty()
        engine, said = self.model.engine, {}
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, detokenize=False)
        for r in range(24):
            engine.add_request(str(r), {"prompt_token_ids": request_tokens(trace, r, self.model.vocabulary)[0]}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    said[int(output.request_id)] = list(output.outputs[0].token_ids)
        return [said[r] for r in range(24)]

    def idle(self) -> tuple[int, int]:
        pool = self.model.pool
        return pool.get_num_free_blocks(), sum(b.ref_cnt for b in pool.blocks[1:])


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """What vLLM does without the plug-in; its engine is over before ours begins."""
    from vllm.v1.core.block_pool import BlockPool

    engine = Engine(None)
    try:
        assert type(engine.model.pool) is BlockPool
        replayed = engine.over(None)
        stats = replayed.serve(10**6)
        return {"hits": replayed.hit_blocks, "stats": stats, "greedy": engine.greedy(), "ttft": replayed.ttft_ms}
    finally:
        engine.live.close()


@pytest.fixture(scope="module")
def engine(plain: dict[str, Any]) -> Iterator[Engine]:
    made = Engine(SAECache())
    yield made
    made.live.close()


def same(live: WindowStats, simulated: WindowStats) -> bool:
    return replace(live, ttft_ms_mean=None) == simulated


def test_vllms_own_lru_is_the_simulators(plain: dict[str, Any]) -> None:
    simulator = Simulator(TRACE, LRU(), BLOCKS)
    expected = simulator.serve(TRACE.num_requests)
    assert np.array_equal(plain["hits"], simulator.hit_blocks)
    stats = plain["stats"]
    assert stats.evictions == expected.evictions > 0
    assert (stats.prompt_tokens, stats.hit_tokens) == (expected.prompt_tokens, expected.hit_tokens)
    assert np.isfinite(plain["ttft"]).all()


@pytest.fixture
def evicted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[LiveEngine], list[int]]:
    """Gives the identities of the blocks that a live engine, which has served the trace, has evicted, in order."""
    hashes: list[bytes] = []
    chains: list[tuple[str, list[bytes]]] = []
    queue = engine.model.pool.free_block_queue
    take, end = queue.popleft_n, Serving.end

    def noted(n: int) -> Any:
        blocks = take(n)
        hashes.extend(block.block_hash[:-4] for block in blocks if block.block_hash is not None)
        return blocks

    def ended(serving: Serving, request: Any) -> Any:
        chains.append((request.request_id, list(request.block_hashes)))
        return end(serving, request)

    monkeypatch.setattr(queue, "popleft_n", noted)
    monkeypatch.setattr(Serving, "end", ended)

    def identities(live: LiveEngine) -> list[int]:
        known: dict[bytes, int] = {}
        for name, of in chains:
            known.update(zip(of, live.trace.chain(int(name.split("-")[0])).tolist(), strict=False))
        return [known[h] for h in hashes]

    return identities


@pytest.mark.parametrize("policy", [LRU(), SAECache(), LPC(), GuardedHazard()], ids=lambda p: p.name)
def test_one_by_one_it_is_the_simulator(
    engine: Engine, policy: Policy, evicted: Callable[[LiveEngine], list[int]]
) -> None:
    continues = np.random.default_rng(1).uniform(size=TRACE.num_requests)
    live = engine.over(policy, continues=continues)
    simulator = Simulator(TRACE, Recorded(policy, 10_000), BLOCKS, continues=continues)
    space = policy.space()
    generator = np.random.default_rng(0)
    while not live.done:
        params = space.from_action(generator.uniform(-1, 1, len(space)).astype(np.float32))
        seen, expected = live.serve(25, params), simulator.serve(25, params)
        assert same(seen, expected)
        assert np.isfinite(seen.ttft_ms_mean)
        assert seen.ttft_ms_mean > 0
    assert np.array_equal(live.hit_blocks, simulator.hit_blocks)
    assert np.array_equal(live.held_by_type(), simulator.held_by_type())
    assert live.evictions == simulator.evictions > 0
    assert evicted(live) == np.concatenate(victims_by_request(simulator)).tolist()
    assert live.policy_errors == 0
    assert live.requests_per_second > 0
    support.check_agreement(engine.model._scheduler.kv_cache_manager)
    assert engine.idle() == (BLOCKS, 0)


def test_what_the_model_says_is_the_same(engine: Engine, plain: dict[str, Any]) -> None:
    engine.over(SAECache())
    assert engine.greedy() == plain["greedy"]
    assert len({tuple(said) for said in plain["greedy"]}) > 12


def test_replies_are_the_traces(engine: Engine) -> None:
    from saecache_rl.engines.vllm.tokens import request_tokens

    live = engine.over(SAECache())
    said: list[list[int]] = []
    step = engine.model.engine.step

    def noted() -> Any:
        outputs = step()
        said.extend(list(output.outputs[0].token_ids) for output in outputs if output.finished)
        return outputs

    engine.model.engine.step = noted
    try:
        live.serve(5)
    finally:
        del engine.model.engine.step
    assert said == [request_tokens(TRACE, r, engine.model.vocabulary)[1] for r in range(5)]


def test_aborts_give_everything_back(engine: Engine) -> None:
    live = engine.over(SAECache())
    for r in range(6):
        live._add(r)
    for _ in range(4):
        engine.model.engine.step()
    assert engine.idle()[0] < BLOCKS
    running = [r.request_id for r in engine.model._scheduler.requests.values()]
    engine.model.engine.abort_request(running, internal=True)
    while engine.model.engine.has_unfinished_requests():
        engine.model.engine.step()
    assert engine.idle() == (BLOCKS, 0)
    support.check_agreement(engine.model._scheduler.kv_cache_manager)


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_requests_that_overlap(engine: Engine, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = engine.model._scheduler
    preempted: list[str] = []
    own = scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        return own(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", noted)
    live = engine.over(SAECache(), replace(OVERLAPPING, loop=loop))
    windows = []
    while not live.done:
        windows.append(live.serve(30))
    assert live.position == TRACE.num_requests
    assert sum(w.requests for w in windows) == TRACE.num_requests
    assert sum(w.prompt_tokens for w in windows) == TRACE.prompt_tokens.sum()
    assert np.isfinite(live.ttft_ms).all()
    assert (live.ttft_ms > 0).all()
    assert preempted or loop == "closed"
    assert engine.idle() == (BLOCKS, 0)
    assert live.policy_errors == 0
    support.check_agreement(scheduler.kv_cache_manager)


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(engine: Engine) -> None:
    whole = engine.over(SAECache())
    windows = [whole.serve(8) for _ in range(3)]
    part = engine.over(SAECache())
    part.serve(8)
    part.serve(8)
    saved, measured = part.state_dict(), part.ttft_ms.copy()
    rest = LiveEngine(TRACE, SAECache(), BLOCKS, settings=ONE_BY_ONE, model=engine.model)
    rest.load_state_dict(saved)
    assert np.array_equal(rest.ttft_ms, measured, equal_nan=True)
    last = rest.serve(8)
    assert replace(last, ttft_ms_mean=None) == replace(windows[2], ttft_ms_mean=None)
    assert np.array_equal(rest.hit_blocks, whole.hit_blocks)


def test_what_it_cannot_do_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(InputError, match="optimum"):
        LiveEngine(TRACE, Optimum(), BLOCKS)
    with pytest.raises(InputError, match="num_blocks=10"):
        LiveEngine(TRACE, LRU(), 10)
    live = engine.over(SAECache())
    with pytest.raises(InputError, match="at least 1"):
        live.serve(0)
    with pytest.raises(InputError, match="another policy"):
        live.serve(1, LRU().space().start())


def node() -> dict[str, Any]:
    return {
        "name": "vllm_cpu_tiny",
        "max_model_len": 1024,
        "dtype": "float32",
        "enforce_eager": True,
        "environment": dict(OVERLAPPING.environment),
    }


@pytest.fixture(scope="module")
def closed(engine: Engine) -> None:
    """Ours is over before another begins; the tests above come first."""
    engine.live.close()


def children() -> set[str]:
    """Process ids of this thread's children."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_the_environment(closed: None) -> None:
    before = children()  # of other modules' tests
    env = PrefixCacheTuningEnv(tiny_trace(1, 40), engine=node(), window=12, reward="ttft", render_mode="ansi")
    assert env.trace.block_size == 32
    try:
        for _ in range(2):
            observation, info = env.reset(seed=3)
            env.action_space.seed(3)
            assert env.observation_space.contains(observation)
            assert isinstance(info["stats"], WindowStats)
            truncated, steps, hits = False, 0, 0
            while not truncated:
                observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
                steps += 1
                hits += info["stats"].hit_tokens
                assert env.observation_space.contains(observation)
                assert isinstance(reward, float)
                assert np.isfinite(reward)
                assert reward == -info["stats"].ttft_ms_mean / 1000 < 0
                assert not terminated
                assert env.layout.read(observation)["log_ttft_ms"] > 0
            assert steps == -(-env.trace.num_requests // 12)
            assert hits == env.engine.hit_tokens.sum() > 0
            assert env.engine.evictions > 0
            assert isinstance(env.render(), str)
    finally:
        env.close()
    assert not multiprocessing.active_children()
    assert children() <= before


TRAINER = """
import json, sys, time
from saecache_rl.envs.tuning import PrefixCacheTuningEnv
from tests.support import tiny_trace
env = PrefixCacheTuningEnv(tiny_trace(1, 20), engine=json.loads(sys.argv[1]), window=4)
env.reset(seed=0)
env.serve()
print(env.engine.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_of_its_own(closed: None) -> None:
    trace = tiny_trace(1, 20)
    env = PrefixCacheTuningEnv(trace, engine=node() | {"process": "own"}, window=8)
    simulator = Simulator(env.trace, SAECache(), env.num_blocks)
    generator = np.random.default_rng(0)
    try:
        env.reset(seed=0)
        pid = env.engine.pid
        assert alive(pid)
        while not env.engine.done:
            params = env.param_space.from_action(generator.uniform(-1, 1, len(env.param_space)).astype(np.float32))
            _, _, _, _, info = env.serve(params)
            assert same(info["stats"], simulator.serve(8, params))
            assert info["stats"].ttft_ms_mean > 0
        assert np.array_equal(env.engine.hit_blocks, simulator.hit_blocks)
        assert np.array_equal(env.engine.held_by_type(), simulator.held_by_type())
        assert env.engine.evictions == simulator.evictions
    finally:
        env.close()
    assert not alive(pid)
    assert np.array_equal(env.engine.hit_blocks, simulator.hit_blocks)


def test_a_killed_trainer_leaves_no_engine(closed: None) -> None:
    import json

    root = str(Path(__file__).resolve().parents[3])
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, json.dumps(node() | {"process": "own"})],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert trainer.stdout is not None
        pid = int(next(line for line in trainer.stdout if line.strip().isdecimal()))
        assert alive(pid)
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive(pid)


@pytest.mark.parametrize(("process", "reference"), [("here", "after"), ("own", "beside")])
def test_train(closed: None, tmp_path: Path, process: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from saecache_rl import train
    from saecache_rl.commands import live_runs
    from tests.commands.support import train_settings

    settings = train_settings("agent=saecache")
    settings.engine, settings.window, settings.reward, settings.num_blocks = node(), 12, "ttft", "auto"
    settings.engine |= {"process": process, "reference": reference}
    settings.plots = False
    followed: list[int] = []
    follow = live_runs.PlainVLLM.follow

    def noted(plain: live_runs.PlainVLLM, position: int, *args: Any) -> None:
        followed.append(position)
        follow(plain, position, *args)

    monkeypatch.setattr(live_runs.PlainVLLM, "follow", noted)
    train.run(settings, tmp_path, trace=tiny_trace(2, 40))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ttft_ms"]["mean"] > 0
    assert summary["ttft_ms"]["p50"] <= summary["ttft_ms"]["p99"]
    assert 0 < summary["reference"]["lru"] <= summary["reference"]["optimum"]
    assert summary["live"]["vllm_lru"]["ttft_ms"]["mean"] > 0
    assert summary["evictions"] > 0
    assert "vllm" in summary["versions"]
    simulator = Simulator(scaled(tiny_trace(2, 40), 32, 1024), LRU(), summary["num_blocks"])
    expected = simulator.serve(10**6)
    assert summary["reference"]["lru"] == expected.token_hit_ratio
    assert summary["live"]["vllm_lru"]["evictions"] == expected.evictions
    last = summary["requests"]
    assert followed == ([last] if reference == "after" else [*range(12, last, 12), last, last])
