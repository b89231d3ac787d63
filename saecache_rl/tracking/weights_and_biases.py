"""Weights & Biases: offline unless a key is at hand, silent, never prompting, never waiting long for a network.

`wandb` takes seconds to import, so it is imported when a run starts, and not at all with ``wandb.mode=disabled``.
"""

from __future__ import annotations

import netrc
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saecache_rl.tracking.sinks import RunInfo, Sink

_HOST = "api.wandb.ai"
_SECONDS_TO_CONNECT = 10
_SECONDS_TO_UPLOAD = 30


@dataclass
class WandbSettings:
    """Weights & Biases.

    Attributes:
        mode: auto (online where WANDB_API_KEY or a login is found, else offline), online, offline, disabled.
        project, entity: where the run goes.
        tags: labels of the run.
    """

    mode: str = "auto"
    project: str = "saecache-rl"
    entity: str | None = None
    tags: list[str] = field(default_factory=list)


def resolve_mode(mode: str) -> str:
    """Turn ``auto`` into online where a key or a login is found, else offline; WANDB_MODE, where set, decides."""
    if mode != "auto":
        return mode
    wished = os.environ.get("WANDB_MODE", "").strip().lower()
    if wished in ("online", "offline", "disabled"):
        return wished
    return "online" if os.environ.get("WANDB_API_KEY", "").strip() or _logged_in() else "offline"


def _logged_in() -> bool:
    files = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for name in files:
        try:
            if netrc.netrc(os.path.expanduser(name)).authenticators(_HOST):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def sinks(settings: WandbSettings) -> list[Sink]:
    """The tracker that the options ask for: one, or none where it is disabled."""
    mode = resolve_mode(settings.mode)
    return [] if mode == "disabled" else [WandbSink(settings, mode)]


class WandbSink(Sink):
    """One run in Weights & Biases: its group is the workload, its job type the agent."""

    def __init__(self, settings: WandbSettings, mode: str) -> None:
        self._settings = settings
        self._mode = mode
        self._run: Any = None
        self._axis = "requests"

    def start(self, run: RunInfo) -> None:
        """Import wandb and begin the run.

        Online falls back to offline where no connection comes about, and offline to nothing: a tracker that fails is
        said so on standard error and never takes the run with it.
        """
        self._axis = run.axis
        _keep_files_in(run.folder)
        import wandb  # takes seconds

        for mode in dict.fromkeys((self._mode, "offline")):
            try:
                self._run = self._begin(wandb, mode, run)
                self._run.define_metric(run.axis, hidden=True)
                self._run.define_metric("*", step_metric=run.axis)
                return
            except (wandb.Error, OSError) as error:
                instead = "the run is recorded offline" if mode == "online" else "the run goes on without it"
                print(f"Weights & Biases {mode}: {' '.join(str(error).split())}; {instead}", file=sys.stderr)

    def _begin(self, wandb: Any, mode: str, run: RunInfo) -> Any:
        return wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            tags=list(self._settings.tags) or None,
            dir=str(run.folder),
            id=_run_id(run),
            resume="allow" if mode == "online" else None,
            name=run.name,
            group=run.workload,
            job_type=run.agent,
            config=dict(run.config),
            mode=mode,
            settings=_quiet(wandb),
        )

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers, nested names joined by ``/``; lists are left to the local file."""
        if self._run is not None:
            self._run.log({self._axis: step, **flatten(values)})

    def finish(self, summary: Mapping[str, Any], figures: Sequence[Path]) -> None:
        """Send the summary and the plots, and close."""
        if self._run is None:
            return
        import wandb

        if figures:
            self._run.log({figure.stem: wandb.Image(str(figure)) for figure in figures})
        self._run.summary.update(flatten(summary, texts=True))
        self.abandon()

    def abandon(self) -> None:
        """Close with what was sent."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def flatten(values: Mapping[str, Any], texts: bool = False, prefix: str = "") -> dict[str, Any]:
    """Nested mappings in one level, names joined by ``/``; numbers, and texts where asked for."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, texts, f"{prefix}{key}/")
        elif isinstance(value, (bool, int, float)) or (texts and isinstance(value, str)):
            flat[f"{prefix}{key}"] = value
    return flat


def _quiet(wandb: Any) -> Any:
    return wandb.Settings(
        silent=True,
        quiet=True,
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=_SECONDS_TO_CONNECT,
        login_timeout=_SECONDS_TO_CONNECT,
        finish_timeout=_SECONDS_TO_UPLOAD,
    )


def _keep_files_in(folder: Path) -> None:
    """Keep wandb's files in the run's folder; those for HOME, too, where there is no home to write to."""
    os.environ["WANDB_DIR"] = str(folder)
    os.environ["WANDB_SILENT"] = "true"
    home = Path(os.path.expanduser("~"))
    if not (home.is_dir() and os.access(home, os.W_OK)):
        for name in ("CACHE", "CONFIG", "DATA"):
            os.environ.setdefault(f"WANDB_{name}_DIR", str(folder / "wandb" / name.lower()))


def _run_id(run: RunInfo) -> str:
    """The id of the run, made once and kept in its folder, so that a resumed run stays one run."""
    path = run.folder / "wandb" / f"id-{run.name.replace('/', '_')}.txt"
    if path.exists() and (known := path.read_text(encoding="utf-8").strip()):
        return known
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = uuid.uuid4().hex[:12]
    path.write_text(fresh + "\n", encoding="utf-8")
    return fresh
