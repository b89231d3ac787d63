"""Training the choice of victims, from the command line as the docs show it, on few requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "train_eviction.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=SCRIPTS, env=environment, capture_output=True, text=True, check=False)


def result(*arguments: str) -> dict[str, Any]:
    done = run("--workload", "agentic_shift", "--requests", "600", *arguments)
    assert done.returncode == 0, done.stderr
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


def test_imitation_beats_lru_on_requests_that_it_has_not_seen() -> None:
    others = result("--candidates", "8")["others"]
    assert others["lru"] + 0.01 < others["imitation"] < others["optimum"]


@pytest.mark.rl
def test_ppo_trains() -> None:
    pytest.importorskip("sb3_contrib")
    trained = result("--learner", "ppo", "--steps", "2048", "--candidates", "4")
    assert 0 < trained["others"]["ppo"] < trained["others"]["optimum"]


def test_a_mistake_is_one_line() -> None:
    done = run("--workload", "agentic_shft")
    assert done.returncode == 2
    assert done.stderr.startswith("train_eviction: ")
    assert "agentic_shift" in done.stderr
    assert done.stderr.count("\n") == 1
