"""Where the figures of a run go, behind one small interface; a further tracker is one subclass of `Sink`."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from saecache_rl.errors import InputError


@dataclass(frozen=True)
class RunInfo:
    """What a tracker is told of a run when it starts.

    Attributes:
        folder: of the run.
        name: unique among the runs of the folder.
        workload, agent, seed: what runs.
        config: all options.
        axis: name of the quantity that a step counts.
    """

    folder: Path
    name: str
    workload: str
    agent: str
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)
    axis: str = "requests"


class Sink(ABC):
    """Takes a run's figures; called in the order start, log …, finish (or abandon)."""

    @abstractmethod
    def start(self, run: RunInfo) -> None:
        """Begin, or go on with, the run."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Take the figures, nested mappings of numbers, after `step` of the run's axis."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], figures: Sequence[Path]) -> None:
        """End the run with its summary and its plots."""

    def abandon(self) -> None:
        """End an interrupted run; it may be gone on with."""
        return


class LocalSink(Sink):
    """A line of JSON for each step, in ``metrics.jsonl``, whole after each `log`."""

    def __init__(self, keep: int = 0) -> None:
        """Continue after the first `keep` lines of what is there, which an interrupted run wrote."""
        self._keep = keep
        self._file: IO[str] | None = None

    def start(self, run: RunInfo) -> None:
        """Open the file and cut it to the lines that are kept.

        Raises:
            InputError: it has fewer.
        """
        path = run.folder / "metrics.jsonl"
        kept: list[bytes] = []
        if self._keep:
            try:
                kept = path.read_bytes().splitlines(keepends=True)[: self._keep]
            except FileNotFoundError:
                kept = []
            if len(kept) < self._keep or not kept[-1].endswith(b"\n"):
                raise InputError(
                    f"{path}: has {len(kept)} whole lines, the checkpoint is at line {self._keep}; "
                    "delete checkpoint.npz to start anew"
                )
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(b"".join(kept))
        partial.replace(path)
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Append a line."""
        assert self._file is not None, "start comes first"
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Return when all lines are on the disk."""
        assert self._file is not None, "start comes first"
        os.fsync(self._file.fileno())

    def finish(self, summary: Mapping[str, Any], figures: Sequence[Path]) -> None:
        """Close the file."""
        self.abandon()

    def abandon(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
