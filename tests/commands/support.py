"""Running the commands, in this process and in fresh ones, on workloads of a few hundred requests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import saecache_rl
from saecache_rl.commands import settings
from saecache_rl.commands.settings import TrainSettings

CHECKOUT = Path(saecache_rl.__file__).parent.parent
SMALL = ["+workload=balanced", "workload.requests=300"]
QUIET = ["wandb.mode=disabled", "plots=false"]


def environment(**changes: str) -> dict[str, str]:
    """That of a fresh process: this checkout on the path, no key of W&B."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "HYDRA", "PYTHONPATH", "NETRC"))}
    return kept | {"PYTHONPATH": str(CHECKOUT)} | changes


def start(command: str, arguments: list[str], folder: Path, **changes: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own, in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-m", f"saecache_rl.{command}", *arguments],
        cwd=folder,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a process."""
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


def run(command: str, arguments: list[str], folder: Path, **changes: str) -> tuple[int, str, str]:
    """Run a command in a process of its own, in `folder`."""
    return finish(start(command, arguments, folder, **changes))


def succeed(command: str, arguments: list[str], folder: Path, **changes: str) -> Path:
    """Run a command that must succeed; return its run's folder, which it prints last."""
    code, out, error = run(command, arguments, folder, **changes)
    assert (code, error) == (0, ""), (code, error)
    return Path(out.splitlines()[-1])


def train_settings(*overrides: str) -> TrainSettings:
    """The options that a command line of `train` gives."""
    settings.register()
    with initialize_config_module("saecache_rl.conf", version_base="1.3"):
        options = OmegaConf.to_object(compose("train", overrides=[*SMALL, *QUIET, *overrides]))
    assert isinstance(options, TrainSettings)
    return options


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary less what a clock measured."""
    return {k: v for k, v in summary.items() if k not in ("wall_seconds", "block_accesses_per_second")}
