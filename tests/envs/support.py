"""What holds of every environment, asked in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check_colon_form(id_: str, requests: int, num_blocks: str, then: str = "") -> None:
    """`gymnasium.make` imports the package by itself where the id says so, without a warning; `then` is run after."""
    code = (
        "import gymnasium\n"
        f"env = gymnasium.make('saecache_rl:{id_}', "
        f"workload={{'_target_': 'tests.support.tiny_trace', 'requests': {requests}}}, num_blocks={num_blocks})\n"
        f"env.reset(seed=0)\n{then}print(env.spec.id)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == id_


def check_hash_seed(module: str) -> None:
    """The rollout that a module of tests makes does not depend on the hash seed."""
    code = (
        "import hashlib\n"
        f"from {module} import make, rollout\n"
        "from tests.support import tiny_trace\n"
        "env = make(tiny_trace(0, 150)); env.reset(seed=0)\n"
        "print(hashlib.sha256(rollout(env, 1)).hexdigest())\n"
    )
    printed = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
