"""The public traces themselves: sizes and ceilings as measured on them elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from saecache_rl.characterization import gaps
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.sessions import hint, lineage
from tests.workloads.naive import hit_blocks
from tests.workloads.test_sessions import precision_and_recall

_FOLDER = os.environ.get("SAECACHE_DATA_DIR")
pytestmark = pytest.mark.skipif(not _FOLDER, reason="SAECACHE_DATA_DIR is not set: the folder of public traces")
DATA = Path(_FOLDER or ".")


def test_mooncake_conversation() -> None:
    trace = make("mooncake", f"path='{DATA / 'mooncake' / 'conversation_trace.jsonl.gz'}'")
    assert trace.num_requests == 12_031
    assert trace.notes["malformed_lines"] == "0"
    assert hit_blocks(trace) / trace.matchable_blocks.sum() == pytest.approx(0.382, abs=0.0005)
    # Turns inferred by lineage, as measured independently: ln seconds 4.89 and 0.97.
    gaps = lineage(trace).gap_seconds
    logs = np.log(gaps[gaps > 0])
    assert logs.mean() == pytest.approx(4.89, abs=0.03)
    assert logs.std() == pytest.approx(0.97, abs=0.03)


def test_claude_code_sessions(tmp_path: Path) -> None:
    unpack = DATA / "unpack-kv-cache-tester"
    if not unpack.is_file():
        pytest.skip("SAECACHE_DATA_DIR has no unpack-kv-cache-tester")
    subprocess.run([str(unpack), str(tmp_path), "60"], check=True, capture_output=True)
    trace = make("kv_cache_tester", f"path='{tmp_path}'")
    assert trace.notes["malformed_files"] == trace.notes["malformed_requests"] == "0"
    assert 0.94 < hit_blocks(trace) / trace.matchable_blocks.sum() < 0.99
    assert set(np.unique(trace.token_type)) == set(range(6))
    precision, recall = precision_and_recall(trace)
    assert precision > 0.99
    assert recall > 0.85
    assert np.array_equal(hint(trace).turn, trace.turn)


DRAWN = ("arrivals=poisson", "session_rate=0.5")


@pytest.mark.parametrize(
    ("name", "file", "overrides", "requests", "sessions", "ceiling"),
    [
        ("mt_bench_101", "mt_bench_101/mtbench101.jsonl.gz", DRAWN, 4208, 1388, 0.806),
        ("openassistant", "openassistant/en_100_tree.jsonl.gz", DRAWN, 687, 555, 0.895),
        ("llama_factory", "llama_factory/reason_tool_use_demo_50.jsonl.gz", DRAWN, 112, 50, 0.671),
        ("tau_bench", "tau_bench/gpt-4o-airline.jsonl.gz", DRAWN, 2454, 200, None),
        ("bfcl", "bfcl/bfcl_v4_multi_turn.tar.xz", DRAWN, 3336, 800, 0.970),
        # Measured elsewhere on blocks of 64 characters: 0.937 and 0.866.
        (
            "lmcache_agent",
            "lmcache_agent_trace/miniswe.jsonl.gz",
            ("tokenizer=characters", "block_size=64"),
            402,
            20,
            0.937,
        ),
        (
            "lmcache_agent",
            "lmcache_agent_trace/taubench.jsonl.gz",
            ("tokenizer=characters", "block_size=64"),
            471,
            24,
            0.866,
        ),
        ("azure", "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz", (), 8819, 0, 0.0),
        ("azure", "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz", (), 19366, 0, 0.0),
    ],
    ids=lambda value: value.split("/")[-1] if isinstance(value, str) and "/" in value else "",
)
def test_every_public_file_loads(
    name: str, file: str, overrides: tuple[str, ...], requests: int, sessions: int, ceiling: float | None
) -> None:
    trace = make(name, f"path='{DATA / file}'", *overrides)
    assert trace.num_requests == requests
    assert len(set(trace.session[trace.session >= 0].tolist())) == sessions
    assert trace.notes.get("malformed_records", trace.notes.get("malformed_lines")) == "0"
    if ceiling is not None:
        assert hit_blocks(trace) / trace.matchable_blocks.sum() == pytest.approx(ceiling, abs=0.002)


@pytest.mark.parametrize(("file", "mu", "sigma"), [("miniswe", 0.11, 0.38), ("taubench", -1.08, 0.39)])
def test_gaps_of_lmcache(file: str, mu: float, sigma: float) -> None:
    trace = make("lmcache_agent", f"path='{DATA / 'lmcache_agent_trace' / file}.jsonl.gz'")
    one = gaps.measure(trace, hint(trace))[0].fits[0]
    assert one.parameters["mu"] == pytest.approx(mu, abs=0.01)
    assert one.parameters["sigma"] == pytest.approx(sigma, abs=0.01)


def test_gaps_of_claude_code_have_two_modes(tmp_path: Path) -> None:
    subprocess.run([str(DATA / "unpack-kv-cache-tester"), str(tmp_path)], check=True, capture_output=True)
    trace = make("kv_cache_tester", f"path='{tmp_path}'")
    measured = gaps.measure(trace, hint(trace))
    starts = {f.family: f for f in measured[0].fits}
    # Measured elsewhere: 0.68 x LN(2.65, 0.49) + 0.32 x LN(4.41, 1.37), KS 0.023; one log-normal 0.139.
    expected = {"weight_1": 0.68, "mu_1": 2.65, "sigma_1": 0.49, "weight_2": 0.32, "mu_2": 4.41, "sigma_2": 1.37}
    for parameter, value in expected.items():
        assert starts["two log-normals"].parameters[parameter] == pytest.approx(value, rel=0.05), parameter
    assert starts["two log-normals"].ks == pytest.approx(0.023, abs=0.001)
    assert starts["log-normal"].ks == pytest.approx(0.139, abs=0.001)
    # On a sample of 250 sessions, after end_turn 5.03, 2.09; after tool_use 2.42, 1.34, gaps of no length not left out.
    person, tool = (
        next(g for g in measured if g.kind == f"{who}, from a reply's end to the next start")
        for who in (gaps.NO_TOOL, gaps.TOOL)
    )
    assert person.above_zero is not None
    assert tool.floored is not None
    assert person.above_zero.mu == pytest.approx(5.03, rel=0.05)
    assert person.above_zero.sigma == pytest.approx(2.09, rel=0.05)
    assert tool.zero == 23
    assert tool.floored.mu == pytest.approx(2.42, rel=0.05)
    assert tool.floored.sigma == pytest.approx(1.34, rel=0.05)
