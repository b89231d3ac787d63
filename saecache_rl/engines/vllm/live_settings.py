"""The options of a live engine, a node of conf/engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from saecache_rl.errors import InputError, nearest

LOOPS = ("one_by_one", "open", "closed")
PROCESSES = ("here", "own")
REFERENCES = ("after", "beside")
TINY = "tiny"


@dataclass(frozen=True)
class LiveSettings:
    """How a live engine is started and driven.

    Attributes:
        name: in results.
        model: a folder, a name on Hugging Face's hub, or "tiny": the one that is made here.
        block_size: tokens in a block of the engine.
        max_model_len: tokens of the longest request, prompt and reply; longer ones are dropped and counted.
        dtype, enforce_eager: as vLLM has them.
        loop: one_by_one (each request is over before the next begins, and the pool's clock stands at its arrival), open
            (requests come at their arrival), closed (a session's next request comes its gap after the last reply).
        speed: seconds of the trace in one of the wall's; open and closed alone.
        max_num_seqs: requests that run at once; open and closed alone.
        process: here (in this process) or own (in one of its own, which ends with this one).
        reference: when `train` has a second vLLM, without the plug-in, serve the same requests: after the run, or
            beside it, a window each in turn, so that other work on the machine slows both alike (and both need room).
        sessions: how a session is known, lineage or hint.
        environment: variables of vLLM's, set where they are not set already.
        engine_args: further arguments of vLLM's `EngineArgs`.
    """

    name: str = "vllm"
    model: str = TINY
    block_size: int = 32
    max_model_len: int = 8192
    dtype: str = "auto"
    enforce_eager: bool = False
    loop: str = "one_by_one"
    speed: float = 1.0
    max_num_seqs: int = 16
    process: str = "here"
    reference: str = "after"
    sessions: str = "lineage"
    environment: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(node: Mapping[str, Any]) -> LiveSettings:
        """Read a node of conf/engine.

        Raises:
            InputError: an unknown option, or a value that can't be; named.
        """
        known = {f.name for f in fields(LiveSettings)}
        for key in node:
            if key not in known:
                raise InputError(
                    f"engine.{key}: unknown{nearest(str(key), known)}; there are {', '.join(sorted(known))}"
                )
        settings = LiveSettings(**node)
        settings._check()
        return settings

    def _check(self) -> None:
        for name in ("name", "model", "dtype", "loop", "process", "reference", "sessions"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InputError(f"engine.{name}={value}: give a name")
        for name in ("block_size", "max_model_len", "max_num_seqs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"engine.{name}={value}: give a positive whole number")
        if self.block_size < 2 or self.max_model_len < self.block_size:
            raise InputError(
                f"engine.block_size={self.block_size}, engine.max_model_len={self.max_model_len}: a block has at least "
                "2 tokens, and the longest request at least a block"
            )
        eager: object = self.enforce_eager
        if not isinstance(eager, bool):
            raise InputError(f"engine.enforce_eager={self.enforce_eager}: true or false")
        if self.loop not in LOOPS:
            raise InputError(f"engine.loop={self.loop}: unknown{nearest(self.loop, LOOPS)}; known: {', '.join(LOOPS)}")
        if self.process not in PROCESSES:
            raise InputError(
                f"engine.process={self.process}: unknown{nearest(self.process, PROCESSES) or ';'} known: here, own"
            )
        if self.reference not in REFERENCES:
            hint = nearest(self.reference, REFERENCES) or ";"
            raise InputError(f"engine.reference={self.reference}: unknown{hint} known: after, beside")
        speed: object = self.speed
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not math.isfinite(speed) or speed <= 0:
            raise InputError(f"engine.speed={speed}: give a positive number of trace seconds a second")
        for name in ("environment", "engine_args"):
            if not isinstance(getattr(self, name), Mapping):
                raise InputError(f"engine.{name}={getattr(self, name)}: give a mapping")
        if self.model != TINY and self.model.startswith((".", "/", "~")) and not Path(self.model).expanduser().is_dir():
            raise InputError(
                f"engine.model={self.model}: no such folder; python scripts/make_tiny_model.py FOLDER makes a small one"
            )


def is_live(node: Mapping[str, Any] | str) -> bool:
    """Whether an engine, by name or node, is a live one; every other is the simulator."""
    return (node if isinstance(node, str) else str(node.get("name", ""))) != "simulator"
