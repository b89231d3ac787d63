"""A live engine in a process of its own, driven from here: parameters in, statistics out.

The other process ends when this one does, however that comes about: it watches the connection and its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.live import LiveEngine
from saecache_rl.engines.vllm.live_settings import LiveSettings
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

#: How long an engine may take to shut down, and between two looks for its parent, seconds.
PATIENCE, LOOK = 20.0, 1.0
_SHOWN = ("position", "window", "served_seconds", "hit_blocks", "ttft_ms", "evictions", "held", "policy_errors")


class RemoteEngine(LiveEngine):
    """A `LiveEngine` whose model, pool and loop are in another process; what it shows is of the last window's end."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy | None,
        num_blocks: int,
        sessions: Sessions | None = None,
        continues: npt.NDArray[np.float64] | None = None,
        settings: LiveSettings | None = None,
    ) -> None:
        """Prepare; see `LiveEngine`."""
        self._shown: dict[str, Any] = {}
        super().__init__(trace, policy, num_blocks, sessions, continues, settings)
        self._arguments = (self.trace, policy, num_blocks, self.sessions, continues, self.settings)
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """The engine's process, None while there is none."""
        return None if self._child is None else self._child.pid

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "saecache_rl.engines.vllm.remote", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._connection = Connection(ours.detach())
        self._connection.send(self._arguments)

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self._connection is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send((what, arguments))
            kind, result, self._shown = self._connection.recv()
        except (EOFError, OSError) as error:
            code = None if self._child is None else self._child.wait()
            self.close()
            raise RuntimeError(f"the engine's process ended with code {code}; its last words are above") from error
        if kind == "input":
            raise InputError(result)
        if kind == "failure":
            raise RuntimeError(f"the engine's process failed:\n{result}")
        for name in ("position", "window", "served_seconds", "hit_blocks", "ttft_ms"):
            setattr(self, name, self._shown[name])
        return result

    def reset(self) -> None:
        """Empty the cache and go back to the first request; starts the process if there is none."""
        self._ask("reset")

    def serve(self, count: int, params: PolicyParams | None = None) -> WindowStats:
        """See `LiveEngine`."""
        if params is not None and (self.policy is None or params.space != self.policy.space()):
            raise InputError("the parameters belong to another policy than the engine's")
        if params is not None:
            self.params = params
        stats: WindowStats = self._ask("serve", count, None if params is None else params.values)
        return stats

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return int(self._shown.get("evictions", 0))

    @property
    def held(self) -> npt.NDArray[np.int64]:
        """(4,) unreferenced resident blocks by `Queue`."""
        return np.array(self._shown.get("held", np.zeros(NUM_QUEUES)), np.int64)

    def held_by_type(self) -> npt.NDArray[np.int64]:
        """(4, 7) resident blocks by `Queue` and `TokenType`; zeros without a running engine."""
        if self._connection is None:
            return np.zeros((NUM_QUEUES, NUM_TOKEN_TYPES), np.int64)
        table: npt.NDArray[np.int64] = self._ask("held_by_type")
        return table

    @property
    def policy_errors(self) -> int:
        """Failures of the policy so far."""
        return int(self._shown.get("policy_errors", 0))

    def state_dict(self) -> dict[str, Any]:
        """See `LiveEngine`."""
        if self._connection is None:
            return super().state_dict()
        state: dict[str, Any] = self._ask("state_dict")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `LiveEngine`."""
        self._ask("load_state_dict", dict(state))

    def close(self) -> None:
        """End the engine's process; results stay readable."""
        child, connection = self._child, self._connection
        self._child = self._connection = None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.send(("close", ()))
            connection.close()
        if child is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE)
                return


def _watch(parent: int) -> None:
    """End this process at once when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def _answer(engine: LiveEngine, what: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    import traceback

    try:
        if what == "serve":
            count, values = arguments
            if values is not None:
                assert engine.policy is not None
                return "done", engine.serve(count, PolicyParams(engine.policy.space(), values))
            return "done", engine.serve(count)
        return "done", getattr(engine, what)(*arguments)
    except InputError as error:
        return "input", str(error)
    except Exception:
        return "failure", traceback.format_exc()


def main(descriptor: int, parent: int) -> None:
    """Serve the process `parent` over a socket until it says that it is over, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(descriptor)
    trace, policy, num_blocks, sessions, continues, settings = connection.recv()
    engine = LiveEngine(trace, policy, num_blocks, sessions, continues, settings)
    try:
        while True:
            what, arguments = connection.recv()
            if what == "close":
                break
            kind, result = _answer(engine, what, arguments)
            connection.send((kind, result, {name: getattr(engine, name) for name in _SHOWN}))
    except (EOFError, OSError):
        pass
    finally:
        engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
