"""vLLM's asynchronous scheduler over our pool: a step is scheduled before the last one's tokens are there.

vLLM turns asynchronous scheduling off on a CPU, so tokens come from a stand-in for the model here, one step late as the
engine core hands them over; scheduler, manager and pool are the real ones.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pytest

from saecache_rl.engines.vllm import plugin
from tests.engines.vllm import support
from tests.engines.vllm.test_live import BLOCKS, Engine

pytestmark = pytest.mark.live

BLOCK = 32


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, Any]]:
    """What a scheduler is made of, from an engine that vLLM has configured."""
    engine = Engine(None)
    own = engine.model._scheduler
    config = copy.copy(own.vllm_config)
    config.scheduler_config = copy.copy(config.scheduler_config)
    config.scheduler_config.async_scheduling = True
    config.scheduler_config.max_num_seqs = 12
    yield {
        "vllm_config": config,
        "kv_cache_config": own.kv_cache_config,
        "structured_output_manager": own.structured_output_manager,
        "block_size": own.block_size,
    }
    engine.live.close()


@dataclass
class Seen:
    """What a run of a scheduler shows."""

    said: dict[str, list[int]] = field(default_factory=dict)
    computed: list[tuple[str, int]] = field(default_factory=list)  # at each first and each resumed scheduling
    preemptions: int = 0
    unfinished: int = 0  # scheduled, but without its tokens yet, when the next step was scheduled


def requests() -> list[Any]:
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    made = []
    for r in range(40):
        shared = [r % 3] * (BLOCK * (4 + r % 3))
        prompt = shared + [1000 + r % 7] * (BLOCK * (r % 5)) + [r] * (r * 7 % 40)
        params = SamplingParams(max_tokens=4 + r * 37 % 270, ignore_eos=True)
        params.update_from_generation_config({}, eos_token_id=None)
        made.append(
            Request(
                request_id=f"r{r}",
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )
        )
    return made


def run(scheduler: Any, one_by_one: bool, aborted: tuple[int, ...] = ()) -> Seen:
    """Serve all, `aborted` ones until they have said something."""
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import RequestStatus

    seen, waiting, steps = Seen(), deque(requests()), deque()
    known = {request.request_id: request for request in waiting}
    preempt = scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.preemptions += 1
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted
    while waiting or scheduler.requests or steps:
        while waiting and (not one_by_one or not scheduler.requests) and len(scheduler.requests) < 12:
            scheduler.add_request(waiting.popleft())
        if scheduler.requests:
            output = scheduler.schedule()
            seen.computed += [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
            cached = output.scheduled_cached_reqs
            resumed = cached.resumed_req_ids
            seen.computed += [
                (i, n) for i, n in zip(cached.req_ids, cached.num_computed_tokens, strict=True) if i in resumed
            ]
            sampling = {i: not known[i].is_prefill_chunk for i in output.num_scheduled_tokens}
            steps.append((output, sampling))
        if len(steps) > 1 or not scheduler.requests or not steps[-1][0].num_scheduled_tokens:
            seen.unfinished += len(steps) > 1
            output, sampling = steps.popleft()
            ids = list(output.num_scheduled_tokens)
            tokens = [[(crc32(i.encode()) + known[i].num_output_tokens) % 1000] if sampling[i] else [] for i in ids]
            scheduler.update_from_output(
                output,
                ModelRunnerOutput(
                    req_ids=ids,
                    req_id_to_index={i: n for n, i in enumerate(ids)},
                    sampled_token_ids=tokens,
                    logprobs=None,
                    prompt_logprobs_dict={},
                    pooler_output=[],
                ),
            )
        for r in aborted:
            if f"r{r}" in scheduler.requests and known[f"r{r}"].num_output_tokens >= 3:
                scheduler.finish_requests(f"r{r}", RequestStatus.FINISHED_ABORTED)
    seen.said = {i: list(request.output_token_ids) for i, request in known.items()}
    return seen


def scheduler_of(parts: dict[str, Any], agent: str | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from saecache_rl.engines.vllm.scheduler import PolicyAsyncScheduler

    if agent is None:
        return AsyncScheduler(**parts)
    monkeypatch.setenv(plugin.AGENT, agent)
    return PolicyAsyncScheduler(**parts)


@pytest.mark.parametrize("agent", ["lru", "saecache", "adaptive"])
@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "overlapping"])
def test_what_is_said_is_the_same_and_nothing_stays(
    parts: dict[str, Any], agent: str, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ours = scheduler_of(parts, None, monkeypatch), scheduler_of(parts, agent, monkeypatch)
    aborted = (3, 8, 21, 39)
    expected, seen = run(plain, one_by_one, aborted), run(ours, one_by_one, aborted)
    assert expected.unfinished > 100
    assert {i: t for i, t in seen.said.items() if int(i[1:]) not in aborted} == {
        i: t for i, t in expected.said.items() if int(i[1:]) not in aborted
    }
    assert any(hits > 0 for _, hits in seen.computed)
    if agent == "lru":
        assert seen == expected
    if not one_by_one:
        assert expected.preemptions > 0
        assert seen.preemptions > 0
    manager = ours.kv_cache_manager
    pool = manager.block_pool
    assert (pool.get_num_free_blocks(), sum(b.ref_cnt for b in pool.blocks[1:])) == (BLOCKS, 0)
    assert not manager.serving.served
    assert not pool.owners
    assert manager.serving.live.evictions > 0
    support.check_agreement(manager)
