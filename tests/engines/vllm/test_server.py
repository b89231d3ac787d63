"""The plug-in in vLLM's OpenAI server, as operators and clients see it; the engine's process spawned, then forked.

Two servers in all: the second goes on from the first one's checkpoint, and fails where a test tells it to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.vocabulary import QUEUE_NAMES
from tests.engines.vllm import support  # noqa: F401
from tests.engines.vllm.server import BLOCK, BLOCKS, ENGINE, Server, environment

pytestmark = pytest.mark.live

WINDOW = 2
#: A package of someone else's: an agent that Hydra finds, and a plug-in of vLLM's that has the engine's process forked
#: (vLLM itself insists on spawning on a CPU), and a choice of victims that fails.
SITE = {
    "touchy.py": """
import multiprocessing
import os
from pathlib import Path

from saecache_rl.agents import Composite


def fails(what):
    return (Path(os.environ["TOUCHY"]) / what).exists()


class Touchy(Composite):
    def observe(self, stats, reward):
        if fails("agent"):
            raise RuntimeError("the agent was told to fail")
        super().observe(stats, reward)


def register():
    from saecache_rl.engines.vllm.core import LiveCache
    from vllm.v1.engine import utils

    own = LiveCache.take

    def take(self, need):
        if fails("policy"):
            raise RuntimeError("the policy was told to fail")
        return own(self, need)

    if own.__module__ != __name__:
        LiveCache.take = take
    if fails("fork"):
        utils.get_mp_context = context


def context():
    print("the engine's process is forked", flush=True)
    return multiprocessing.get_context("fork")
""",
    "touchy_conf/__init__.py": "",
    "touchy_conf/agent/__init__.py": "",
    "touchy_conf/agent/touchy.yaml": "defaults:\n  - saecache\n  - _self_\n_target_: touchy.Touchy\n",
    "hydra_plugins/touchy/__init__.py": """
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class TouchySearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="touchy", path="pkg://touchy_conf")
""",
    "touchy-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: touchy\nVersion: 1.0\n",
    "touchy-1.0.dist-info/entry_points.txt": "[vllm.general_plugins]\ntouchy = touchy:register\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers run; `site` in it is someone else's package."""
    made = tmp_path_factory.mktemp("servers")
    for name, content in SITE.items():
        (made / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (made / "site" / name).write_text(content)
    return made


def serve(folder: Path, log: str) -> Server:
    settings = {
        "SAECACHE_AGENT": "touchy",
        "SAECACHE_WINDOW": str(WINDOW),
        "SAECACHE_CHECKPOINT": str(folder / "agent.npz"),
        "TOUCHY": str(folder),
    }
    return Server(folder / log, [folder / "site"], settings)


@pytest.fixture(scope="module")
def spawned(folder: Path) -> Iterator[Server]:
    server = serve(folder, "spawned.log")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def learned(spawned: Server) -> dict[str, float]:
    """The first server's parameters when it was stopped; the tests of it come first."""
    parameters = spawned.metrics().by("saecache_parameter", "name")
    assert spawned.stop() == []
    return parameters


@pytest.fixture(scope="module")
def forked(folder: Path, learned: dict[str, float]) -> Iterator[Server]:
    (folder / "fork").touch()
    server = serve(folder, "forked.log")
    yield server
    server.stop()


def chat(server: Server, messages: list[Any], hints: dict[str, Any] | None = None) -> Any:
    """One request through OpenAI's own client."""
    import openai

    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        return client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=8,
            temperature=0,
            extra_body=None if hints is None else {"vllm_xargs": hints},
        )


def asks(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def check_second_turn(server: Server, about: str) -> None:
    """A chat of two turns without a hint: the second hits the first one's blocks, and all that count agree."""
    before = server.metrics()
    messages = [{"role": "system", "content": "Answer in one word. " * 6}, *asks(f"What is {about}? " * 6)]
    first = chat(server, messages)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, *asks("And why?")]
    second = chat(server, messages)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens // BLOCK * BLOCK > 0
    after = server.metrics()
    for metric, labels in (
        ("saecache_queue_hit_blocks_total", "queue"),
        ("saecache_token_type_hit_blocks_total", "token_type"),
    ):
        hits = sum(after.by(metric, labels).values()) - sum(before.by(metric, labels).values())
        assert hits * BLOCK == cached
    by_vllm = "vllm:prefix_cache_hits_total"
    assert (after.value(by_vllm) or 0) - (before.value(by_vllm) or 0) == cached
    types = "saecache_token_type_hit_blocks_total"
    assert (after.value(types, token_type="system") or 0) > (before.value(types, token_type="system") or 0)


def test_it_says_what_rules_before_the_first_request(spawned: Server) -> None:
    metrics = spawned.metrics()
    assert metrics.value("saecache_info", agent="saecache", policy="saecache") == 1
    assert metrics.by("saecache_parameter", "name") == SAECache().space().start().as_dict()
    assert metrics.by("saecache_queue_hit_blocks_total", "queue") == dict.fromkeys(QUEUE_NAMES, 0.0)
    assert metrics.value("saecache_fallbacks_total") == 0
    assert "agent saecache (policy saecache) rules the eviction of 64 KV blocks" in spawned.log()
    assert "token types: chatml" in spawned.log().lower()
    assert "is forked" not in spawned.log()


def test_a_second_turn_hits_without_a_hint(spawned: Server) -> None:
    check_second_turn(spawned, "a cache")


def test_hints_reach_the_policy_and_bad_ones_are_counted(spawned: Server) -> None:
    agentic = {"queue": "agentic"}
    assert spawned.metrics().value("saecache_unreferenced_blocks", **agentic) == 0
    for turn in range(2):
        chat(
            spawned,
            asks(f"Turn {turn} of a session that shares no prefix. " * 4),
            {"session_id": "a", "session_kind": "agentic"},
        )
    metrics = spawned.metrics()
    assert (metrics.value("saecache_unreferenced_blocks", **agentic) or 0) > 0
    assert sum(metrics.by("saecache_ignored_hints_total", "hint").values()) == 0
    bad = {"priority": 1000, "retention_seconds": -1, "no_reuse": "perhaps", "spans": "[[0, 8", "session_kind": "long"}
    assert chat(spawned, asks("Hints that say nothing."), {**bad, "session_id": "a"}).usage.completion_tokens > 0
    counted = spawned.metrics().by("saecache_ignored_hints_total", "hint")
    assert counted == {"session_id": 0, **dict.fromkeys(bad, 1.0)}


def test_evictions_are_counted_and_the_agent_learns(spawned: Server, folder: Path) -> None:
    for number in range(8):
        chat(spawned, asks(f"{number} fills the cache. " * 20))
    metrics = spawned.metrics()
    evicted = metrics.by("saecache_queue_evicted_blocks_total", "queue")
    assert sum(evicted.values()) > 0
    assert sum(metrics.by("saecache_token_type_evicted_blocks_total", "token_type").values()) == sum(evicted.values())
    assert sum(metrics.by("saecache_unreferenced_blocks", "queue").values()) <= BLOCKS
    assert (metrics.value("saecache_windows_total") or 0) > 4
    assert metrics.by("saecache_parameter", "name") != SAECache().space().start().as_dict()
    assert metrics.by("saecache_policy_errors_total", "place") == {}
    assert (folder / "agent.npz").exists()


def test_a_server_that_starts_again_has_the_parameters_it_had(learned: dict[str, float], forked: Server) -> None:
    assert learned != SAECache().space().start().as_dict()
    assert forked.metrics().by("saecache_parameter", "name") == learned
    assert "agent saecache goes on from" in forked.log()
    assert "the engine's process is forked" in forked.log()


def test_a_forked_engine_hits_and_counts_as_well(forked: Server) -> None:
    assert forked.metrics().value("saecache_info", agent="saecache", policy="saecache") == 1
    check_second_turn(forked, "a fork")


def test_an_agent_that_fails_is_counted_and_the_server_answers(forked: Server, folder: Path) -> None:
    (folder / "agent").touch()
    try:
        for number in range(2 * WINDOW):
            assert chat(forked, asks(f"Say {number}.")).usage.completion_tokens > 0
    finally:
        (folder / "agent").unlink()
    metrics = forked.metrics()
    assert metrics.value("saecache_policy_errors_total", place="agent.observe") == 2
    assert metrics.value("saecache_info", agent="saecache", policy="saecache") == 1
    assert "agent.observe failed: RuntimeError('the agent was told to fail')" in forked.log()


def test_a_policy_that_fails_is_counted_then_left_out_and_the_server_answers(forked: Server, folder: Path) -> None:
    def says(number: int) -> str:
        return str(chat(forked, asks(f"{number} whatever rules? " * 20)).choices[0].message.content)

    said = [says(number) for number in range(4)]
    assert forked.metrics().value("saecache_fallbacks_total") == 0
    (folder / "policy").touch()
    again = [says(number) for number in range(2)]
    metrics = forked.metrics()
    place = "policy saecache: choice"
    fallbacks = metrics.value("saecache_fallbacks_total")
    assert fallbacks is not None
    assert fallbacks > 0
    assert metrics.value("saecache_policy_errors_total", place=place) == fallbacks
    assert f"{place} failed: RuntimeError('the policy was told to fail')" in forked.log()
    for number in range(10):
        chat(forked, asks(f"{number} more to place. " * 10))
    assert [*again, says(2), says(3)] == said
    metrics = forked.metrics()
    assert metrics.value("saecache_info", agent="saecache", policy="saecache") == 0
    assert metrics.value("saecache_info", agent="saecache", policy="vllm") == 1
    assert "is left out; vLLM's own order rules from now on" in forked.log()


def test_nothing_is_left_of_a_server(forked: Server) -> None:
    assert forked.stop() == []


IN_PROCESS = """
import json, sys
from prometheus_client import REGISTRY
from vllm import LLM, SamplingParams

llm = LLM(**json.loads(sys.argv[1]), disable_log_stats=False)
params = SamplingParams(max_tokens=4, temperature=0, extra_args={"priority": float("nan")})
prompt = {"prompt_token_ids": list(range(200))}
outputs = [llm.generate(prompt, params, use_tqdm=False)[0] for _ in range(2)]
labels = {"model_name": sys.argv[2], "engine": "0"}
print(json.dumps({
    "cached": [output.num_cached_tokens for output in outputs],
    "rules": REGISTRY.get_sample_value("saecache_info", {**labels, "agent": "adaptive", "policy": "adaptive"}),
    "hits": REGISTRY.get_sample_value("saecache_token_type_hit_blocks_total", {**labels, "token_type": "unknown"}),
    "ignored": REGISTRY.get_sample_value("saecache_ignored_hints_total", {**labels, "hint": "priority"}),
}))
"""


def test_an_engine_in_the_process_of_its_user_shows_the_same(tmp_path: Path) -> None:
    from saecache_rl.engines.vllm.tiny_model import tiny_model

    model = str(tiny_model())
    settings = {"SAECACHE_AGENT": "adaptive", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    script = tmp_path / "user.py"
    script.write_text(IN_PROCESS)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps({"model": model, **ENGINE}), model],
        env=environment([], settings),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert seen == {"cached": [0, 192], "rules": 1.0, "hits": 6.0, "ignored": 2.0}
