"""What an agent has learned, in a file, so that a server that starts again goes on from there.

Written whole or not at all (`saecache_rl.checkpoint`), at the end of a window, unless that would take more than `SHARE`
of the time, and when the engine shuts down. vLLM's server lets its engine shut down only if it is given time
(`--shutdown-timeout`), else kills it, so that what is learned must not wait for the end. A file that can't be used is
moved aside and named in the log, and the agent starts anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from saecache_rl import checkpoint
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.vllm.serving import logger
from saecache_rl.errors import InputError

if TYPE_CHECKING:
    from saecache_rl.engines.vllm.core import LiveCache

#: Part of the time that goes into saving at most; the engine waits for it. A file takes 4 to 9 ms on a local disk.
SHARE = 0.01


def check_path(text: str) -> Path:
    """The file that `text` names.

    Raises:
        InputError: it is a folder, or in none that can be written to.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} is no folder that can be written to; make it, or give another file")
    return path


def _nothing_learned(policy: Policy) -> npt.NDArray[np.float64]:
    start, _ = policy.state(1)
    return start if policy.learns else start[:0]


class AgentFile:
    """Restores an agent from a file, and saves it there."""

    def __init__(self, path: Path, agent: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """For `agent`, of which are used: name, policy, reset, state_dict, load_state_dict."""
        self.path, self._agent, self._clock = path, agent, clock
        self._params: PolicyParams | None = None  # not saved yet
        self._learned: npt.NDArray[np.float64] = _nothing_learned(agent.policy)
        self._next = float("-inf")
        self._usable = True
        self._cache: LiveCache | None = None

    def restore(self, seed: int) -> bool:
        """Put the agent where the file has it; if there is no file, or none that can be used, begin from `seed`."""
        agent = self._agent
        agent.reset(seed)
        if not self.path.exists():
            logger.info("saecache_rl: no %s yet; agent %s starts from its defaults", self.path, agent.name)
            return False
        try:
            state, learned = self._load()
            agent.load_state_dict(state)
        except Exception as error:  # whatever a file of someone else's makes of it
            agent.reset(seed)
            reason = " ".join(str(error).split())
            self._put_aside(reason if str(self.path) in reason else f"{self.path}: {reason}")
            return False
        self._learned = learned
        logger.info("saecache_rl: agent %s goes on from %s", agent.name, self.path)
        return True

    def attach(self, cache: LiveCache) -> None:
        """Teach `cache` what its policy had learned, and keep from now on what it learns."""
        cache.teach(self._learned)
        self._cache = cache

    def _load(self) -> tuple[dict[str, Any], npt.NDArray[np.float64]]:
        saved = checkpoint.load(self.path, remedy=f"agent {self._agent.name} starts from its defaults")
        if saved.keys() != {"agent", "policy", "parameters", "state", "learned"}:
            raise InputError(f"{self.path}: a checkpoint, but not one of an agent of a server")
        theirs, ours = (saved["agent"], saved["policy"]), (self._agent.name, self._agent.policy.name)
        if theirs != ours:
            raise InputError(
                f"{self.path}: of agent {theirs[0]} with policy {theirs[1]}, not of {ours[0]} with {ours[1]}"
            )
        learned = np.asarray(saved["learned"], np.float64)
        if learned.shape != self._learned.shape or not np.isfinite(learned).all():
            raise InputError(f"{self.path}: what policy {ours[1]} had learned is of another version, or not finite")
        return saved["state"], learned

    def _put_aside(self, reason: str) -> None:
        number, aside = 1, self.path.with_name(f"{self.path.name}.unusable")
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"{self.path.name}.unusable-{number}")
        try:
            self.path.rename(aside)
        except OSError as error:
            self._usable = False
            logger.error(
                "saecache_rl: %s; the file can't be moved aside (%s), so nothing is saved in this run", reason, error
            )
            return
        logger.error("saecache_rl: %s; the agent starts from its defaults, and the file is kept as %s", reason, aside)

    def after_window(self, params: PolicyParams) -> None:
        """A window is over and `params` are in force; save them with the agent, unless that is too soon.

        Raises:
            OSError: the file can't be written.
        """
        self._params = params
        if self._clock() >= self._next:
            self.close()

    def close(self) -> None:
        """Save what has not been saved.

        Raises:
            OSError: the file can't be written.
        """
        params, self._params = self._params, None
        if params is None or not self._usable:
            return
        began = self._clock()
        try:
            self._save(params)
        finally:
            now = self._clock()
            self._next = now + (now - began) / SHARE

    def _save(self, params: PolicyParams) -> None:
        agent = self._agent
        checkpoint.save(
            self.path,
            {
                "agent": agent.name,
                "policy": agent.policy.name,
                "parameters": params.as_dict(),
                "state": agent.state_dict(),
                "learned": self._learned if self._cache is None else self._cache.learned,
            },
        )
