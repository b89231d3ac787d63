"""What `train` leaves, and that it is the same however the run came about."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from saecache_rl import train
from saecache_rl.commands import runs
from tests.commands.support import CHECKOUT, QUIET, SMALL, finish, run, start, succeed, train_settings, without_times

SUMMARY_KEYS = [
    *("workload", "engine", "agent", "seed", "num_blocks", "block_size", "requests", "prompt_tokens", "hit_tokens"),
    *("token_hit_ratio", "block_hit_ratio", "ceiling_token_hit_ratio", "ttft_ms", "recomputed_tokens", "evictions"),
    *("reference", "gap_closed", "wall_seconds", "block_accesses_per_second", "oracle", "sessions", "versions"),
    *("predictor", "window", "sampled_choices", "trace_digest", "workload_notes"),
]
AGENTS = sorted(path.stem for path in (CHECKOUT / "saecache_rl" / "conf" / "agent").glob("*.yaml"))


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    folder = succeed("train", [*SMALL, "wandb.mode=disabled", "hydra.run.dir=run"], tmp_path)
    assert folder == tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert names == {".hydra", "config.yaml", "metrics.jsonl", "summary.json", "run.png", "checkpoint.npz"}
    assert (folder / "run.png").read_bytes().startswith(b"\x89PNG")

    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary) == SUMMARY_KEYS
    assert (summary["workload"], summary["agent"], summary["engine"]) == ("balanced", "saecache", "simulator")
    assert (summary["requests"], summary["ttft_ms"], summary["oracle"]) == (300, None, False)
    assert list(summary["reference"]) == ["lru", "optimum"]
    assert list(summary["recomputed_tokens"]) == ["p50", "p95", "p99"]
    assert list(summary["versions"]) == ["saecache_rl", "python", "numpy", "numba"]
    assert summary["token_hit_ratio"] == summary["hit_tokens"] / summary["prompt_tokens"]
    frame = summary["reference"]
    assert 0 < frame["lru"] < frame["optimum"] <= summary["ceiling_token_hit_ratio"]
    gap = (summary["token_hit_ratio"] - frame["lru"]) / (frame["optimum"] - frame["lru"])
    assert summary["gap_closed"] == pytest.approx(gap, abs=1e-9)

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["window"] for line in lines] == [0, 1, 2]
    assert sum(line["requests"] for line in lines) == 300
    assert sum(line["hit_tokens"] for line in lines) == summary["hit_tokens"]
    assert sum(line["evictions"] for line in lines) == summary["evictions"]
    assert lines[0]["params"]["alpha.chat"] == 1.0
    assert {"queue_hits", "type_accesses", "offset_hits", "gap_count", "reward"} <= set(lines[0])


def test_the_references_are_the_agents_of_their_names(tmp_path: Path) -> None:
    for agent in ("lru", "optimum"):
        folder = tmp_path / agent
        folder.mkdir()
        summary = train.run(train_settings(f"agent={agent}"), folder)
        assert summary.token_hit_ratio == summary.reference[agent]
        assert summary.oracle == (agent == "optimum")
        assert summary.gap_closed == {"lru": 0.0, "optimum": 1.0}[agent]


def test_gap_is_none_where_nothing_is_evicted(tmp_path: Path) -> None:
    summary = train.run(train_settings("num_blocks=1000000"), tmp_path)
    assert summary.evictions == 0
    assert summary.gap_closed is None
    assert summary.token_hit_ratio == summary.ceiling_token_hit_ratio


def test_the_true_answer_marks_a_run_as_an_oracle(tmp_path: Path) -> None:
    assert train.run(train_settings("predictor=true_answer"), tmp_path).oracle


def test_same_lines_for_any_hash_seed_and_folder(tmp_path: Path) -> None:
    processes: list[tuple[Path, subprocess.Popen[str]]] = []
    for seed in ("0", "1", "4711"):
        folder = tmp_path / f"from {seed}"
        folder.mkdir()
        processes.append((folder, start("train", [*SMALL, *QUIET, "window=20"], folder, PYTHONHASHSEED=seed)))
    results = []
    for folder, process in processes:
        code, out, error = finish(process)
        assert (code, error) == (0, "")
        left = Path(out.splitlines()[-1])
        assert left.is_relative_to(folder)
        summary = without_times(json.loads((left / "summary.json").read_text()))
        results.append(((left / "metrics.jsonl").read_bytes(), summary))
    assert results[0] == results[1] == results[2]


def test_another_seed_draws_the_workload_anew_unless_that_has_its_own(tmp_path: Path) -> None:
    digests = []
    for i, (seed, reseed) in enumerate(((0, True), (1, True), (1, False))):
        (tmp_path / str(i)).mkdir()
        options = train_settings("agent=lru", f"seed={seed}", f"reseed_workload={reseed}")
        digests.append(train.run(options, tmp_path / str(i)).trace_digest)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_trace_cut_short_gives_the_same_leading_lines(agent: str, tmp_path: Path) -> None:
    options = train_settings(f"agent={agent}", "window=25", "num_blocks=4000")
    made = runs.make_agent(options.agent)
    if made.policy.oracle:
        pytest.skip(f"{agent} is marked as an oracle in every output")
    trace = runs.make_trace(options.workload, 0)
    lines = []
    for requests in (300, 150):
        folder = tmp_path / str(requests)
        folder.mkdir()
        train.run(options, folder, trace.head(requests))
        lines.append((folder / "metrics.jsonl").read_text().splitlines())
    assert len(lines[0]) == 12
    assert lines[1] == lines[0][:6]


# Windows of two requests make a run long enough to be caught in the middle.
LONG = ["+workload=balanced", "workload.requests=1500", "window=2", "checkpoint_every=25", *QUIET]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return succeed("train", [*LONG, "hydra.run.dir=whole"], tmp_path_factory.mktemp("uninterrupted"))


def wait_for_lines(path: Path, lines: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_resumed_run_equals_an_uninterrupted_one(number: signal.Signals, tmp_path: Path, uninterrupted: Path) -> None:
    process = start("train", [*LONG, "hydra.run.dir=part"], tmp_path)
    folder = tmp_path / "part"
    wait_for_lines(folder / "metrics.jsonl", 90, process)
    process.send_signal(number)
    code, _, error = finish(process)
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130
        assert error == f"train: interrupted; continue with: python -m saecache_rl.train resume={folder}\n"
    lines = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    assert 90 <= lines < 750
    assert not (folder / "summary.json").exists()

    # From another folder: what the run needs stands in its own.
    (tmp_path / "elsewhere").mkdir()
    code, out, error = run("train", [f"resume={folder}"], tmp_path / "elsewhere")
    assert (code, error) == (0, "")
    assert out.splitlines()[-1] == str(folder)
    assert (folder / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()
    a, b = (json.loads((f / "summary.json").read_text()) for f in (folder, uninterrupted))
    assert without_times(a) == without_times(b)


def test_resume_before_the_first_checkpoint_and_of_a_complete_run(tmp_path: Path, uninterrupted: Path) -> None:
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "config.yaml").write_bytes((uninterrupted / "config.yaml").read_bytes())
    (folder / "metrics.jsonl").write_bytes(b'{"window": 0}\n{"win')
    for said in ("hit ratio", "complete already"):
        code, out, error = run("train", [f"resume={folder}"], tmp_path)
        assert (code, error) == (0, "")
        assert said in out
    assert (folder / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()


def test_resume_refuses_a_damaged_checkpoint_and_other_data(tmp_path: Path, uninterrupted: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "checkpoint.npz"):
        (tmp_path / name).write_bytes((uninterrupted / name).read_bytes())
    config = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("requests: 1500", "requests: 1400"))
    code, _, error = run("train", [f"resume={tmp_path}"], tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "data has changed" in error
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "checkpoint.npz").write_bytes(b"PK")
    code, _, error = run("train", [f"resume={tmp_path}"], tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "checkpoint.npz: not a whole checkpoint" in error
