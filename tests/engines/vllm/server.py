"""A vLLM OpenAI server of a test: started on a free port, watched, and gone with the test, whatever happens."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saecache_rl.engines.vllm.tiny_model import tiny_model
from tests.engines.vllm.support import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[3]
BLOCK = 32
BLOCKS = 64
ENGINE: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": BLOCK,
    "num_gpu_blocks_override": BLOCKS + 1,
    "max_model_len": 1024,
    "max_num_seqs": 4,
}
#: Until a server answers, or ends: it takes a minute, on a busy machine several.
START_SECONDS = 600
END_SECONDS = 60

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def environment(paths: list[Path], settings: Mapping[str, str]) -> dict[str, str]:
    """A process's variables: this checkout and `paths` come first on its path, of ours there are only `settings`."""
    # Nor what a test of another module has left: an engine in this process turns vLLM's log down.
    ours = ("SAECACHE_", "VLLM_LOGGING")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join(map(str, [ROOT, *paths]))
    return {**kept, **ENVIRONMENT, "PYTHONPATH": path, **settings}


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _end_with_parent() -> None:
    """Between fork and exec: have Linux end this process with the one that started it, even when that is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """`python -m vllm.entrypoints.openai.api_server` with the tiny model, as "tiny"."""

    def __init__(self, log: Path, paths: list[Path], settings: Mapping[str, str]) -> None:
        """Start it and wait until it answers.

        Args:
            log: the file for what it prints.
            paths: folders to import from.
            settings: environment variables.

        Raises:
            RuntimeError: it has ended, or does not answer; with the end of the log.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--model", str(tiny_model()), "--served-model-name", "tiny"]
        command += ["--enable-prompt-tokens-details", "--shutdown-timeout", str(END_SECONDS // 2)]
        for name, value in ENGINE.items():
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=log.parent,
                env=environment(paths, settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the server did not start:\n{self.log()[-4000:]}") from None
            time.sleep(0.5)

    def stop(self) -> list[int]:
        """End it; return the processes that it left, which are ended too."""
        process = self._process
        started = descendants(process.pid) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        until = time.monotonic() + END_SECONDS
        while any(map(alive, started)) and time.monotonic() < until:
            time.sleep(0.1)
        left = [pid for pid in started if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left

    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def get(self, path: str) -> str:
        """The body of an answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def metrics(self) -> Metrics:
        """What /metrics says now."""
        return Metrics(self.get("/metrics"))


class Metrics:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for line in text.splitlines():
            sample = _SAMPLE.match(line)
            if sample:
                labels = {k: v for k, v in _LABEL.findall(sample[2] or "") if k not in ("model_name", "engine")}
                self._samples[sample[1], frozenset(labels.items())] = float(sample[3])

    def value(self, metric: str, /, **labels: str) -> float | None:
        """A sample of one engine; None if there is none."""
        return self._samples.get((metric, frozenset(labels.items())))

    def by(self, metric: str, label: str) -> dict[str, float]:
        """All samples of a metric with one label."""
        return {
            dict(labels)[label]: value
            for (name, labels), value in self._samples.items()
            if name == metric and len(labels) == 1 and label in dict(labels)
        }
