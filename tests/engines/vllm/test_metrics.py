"""What happens in an engine is what its front end shows, each thing once, and only when there is something new."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.engines.vllm.report import Report
from saecache_rl.vocabulary import Queue, TokenType
from tests.engines.vllm.support import BLOCK, make_request, once, replay

pytestmark = pytest.mark.live

CONFIG = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))


class Shown:
    """A front end, and the report of one engine to it."""

    def __init__(self, on: Any) -> None:
        from saecache_rl.engines.vllm.metrics import PolicyMetrics

        pool = on.manager.block_pool
        self.report = Report(on.manager.serving, lambda: pool.in_force)
        self.metrics = PolicyMetrics(CONFIG, [0])

    def step(self) -> bool:
        """One step of the engine; whether it had anything to tell."""
        from vllm.v1.metrics.stats import SchedulerStats

        from saecache_rl.engines.vllm.metrics import attach

        stats = SchedulerStats(num_kv_fetch_reqs_by_stage={"in_progress": 3})
        told = self.report.take()
        if told is not None:
            attach(stats, told)
        self.metrics.record(sent(stats), None, engine_idx=0)
        return told is not None

    def value(self, metric: str, /, **labels: str) -> float | None:
        from prometheus_client import REGISTRY

        return REGISTRY.get_sample_value(f"saecache_{metric}", {"model_name": "m", "engine": "0", **labels})


def sent(stats: Any) -> Any:
    """What arrives of an engine's statistics over vLLM's socket."""
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    outputs = EngineCoreOutputs(scheduler_stats=stats)
    return MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs)).scheduler_stats


def tokens(blocks: int, seed: int) -> list[int]:
    return [1000 * seed + i for i in range(blocks * BLOCK + 1)]


def test_counts_are_the_pools() -> None:
    on = replay(SAECache(), 20, window=3)
    shown = Shown(on)
    assert shown.step()
    assert not shown.step()
    assert shown.value("info", agent="constant", policy="saecache") == 1
    assert shown.value("queue_hit_blocks_total", queue="chat") == 0
    spans = [[0, 2 * BLOCK, "system"], [2 * BLOCK, 5 * BLOCK, "user"]]
    windows = []
    on.manager.serving.on_window(lambda stats, params: windows.append(stats))
    for number, seed in enumerate((1, 1, 2, 3, 4, 5, 1)):
        once(on.manager, make_request(on, str(number), tokens(5, seed), {"spans": spans, "priority": -1}))
        assert shown.step()
    live = on.manager.serving.live
    windows.append(live.end_window())
    assert len(windows) == 3
    evicted = {q: shown.value("queue_evicted_blocks_total", queue=q.name.lower()) for q in Queue}
    assert sum(evicted.values()) == live.evictions > 0
    for metric, column, kinds in (
        ("queue_hit_blocks_total", "queue_hits", Queue),
        ("queue_evicted_blocks_total", "queue_evictions", Queue),
        ("token_type_matchable_blocks_total", "type_accesses", TokenType),
        ("token_type_hit_blocks_total", "type_hits", TokenType),
        ("token_type_evicted_blocks_total", "type_evictions", TokenType),
    ):
        label = metric.split("_")[0].replace("token", "token_type")
        for kind in kinds:
            expected = sum(int(getattr(w, column)[kind]) for w in windows)
            assert shown.value(metric, **{label: kind.name.lower()}) == expected
    assert shown.value("token_type_hit_blocks_total", token_type="user") > 0
    assert shown.value("windows_total") == 2
    assert shown.value("ignored_hints_total", hint="priority") == 7
    assert shown.value("unreferenced_blocks", queue="structural") == live.held()[Queue.STRUCTURAL]
    assert shown.value("parameter", name="gamma") == live.params["gamma"]
    assert shown.value("fallbacks_total") == 0


def test_a_reset_of_the_prefix_cache_takes_nothing_back() -> None:
    on = replay(LRU(), 20)
    shown = Shown(on)
    for seed in range(6):
        once(on.manager, make_request(on, str(seed), tokens(5, seed)))
    shown.step()
    before = shown.value("queue_evicted_blocks_total", queue="evict_first")
    assert before is not None
    assert before > 0
    assert on.manager.reset_prefix_cache()
    shown.step()
    assert shown.value("queue_evicted_blocks_total", queue="evict_first") == before
    for seed in range(6):
        once(on.manager, make_request(on, f"again {seed}", tokens(5, seed)))
    shown.step()
    assert shown.value("queue_evicted_blocks_total", queue="evict_first") == 2 * before


def test_a_policy_that_is_left_out_is_shown_as_such() -> None:
    on = replay(LRU(), 20)
    shown = Shown(on)
    live = on.manager.serving.live

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("injected")

    live.take = live.release = live.insert = broken
    for seed in range(3):
        once(on.manager, make_request(on, str(seed), tokens(4, seed)))
    shown.step()
    assert shown.value("info", agent="constant", policy="lru") == 1
    assert shown.value("policy_errors_total", place="policy lru: choice") > 0
    for seed in range(30):
        once(on.manager, make_request(on, f"more {seed}", tokens(4, seed)))
    shown.step()
    assert shown.value("info", agent="constant", policy="lru") == 0
    assert shown.value("info", agent="constant", policy="vllm") == 1
    assert shown.value("fallbacks_total") == on.manager.serving.counts.fallbacks > 10


def test_vllms_own_loggers_see_nothing_of_it() -> None:
    from vllm.v1.metrics.stats import SchedulerStats

    from saecache_rl.engines.vllm.metrics import attach

    on = replay(LRU(), 20)
    shown = Shown(on)
    stats = SchedulerStats(num_kv_fetch_reqs_by_stage={"in_progress": 3})
    attach(stats, str(shown.report.take()))
    # A front end without the plug-in: the numbers that vLLM reads are its own, and none is added.
    assert sorted(stats.num_kv_fetch_reqs_by_stage.values()) == [0, 3]
    shown.metrics.record(stats, None)
    assert stats.num_kv_fetch_reqs_by_stage == {"in_progress": 3}


def test_a_report_that_cannot_be_read_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    from vllm.v1.metrics.stats import SchedulerStats

    from saecache_rl.engines.vllm.metrics import attach

    shown = Shown(replay(LRU(), 20))
    for report in ("{", json.dumps({"agent": "x"}), json.dumps([])):
        stats = SchedulerStats()
        attach(stats, report)
        shown.metrics.record(stats, None)
    assert shown.step()
    assert shown.value("info", agent="constant", policy="lru") == 1
