"""Independent jobs over local cores; a job that fails, or takes its process with it, takes no other along.

Python's ProcessPoolExecutor is not used: its own thread may still be closing pipes when the interpreter ends, which
then fails now and then (Bad file descriptor); and when one process dies it can't say which job it had.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

#: Seconds that a process has to end by itself, and again after it was told to.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Done(Generic[Job, Result]):
    """A job that ended: its result, or the error that it raised."""

    job: Job
    result: Result | None = None
    error: Exception | None = None


class WorkerDiedError(RuntimeError):
    """The process that had a job ended without an answer."""


class _RemoteError(Exception):
    """Where in its process an error was raised, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


class _Worker:
    """One process, and our end of the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs,))
        with _held_interrupts():
            self.process.start()
        theirs.close()

    @property
    def dead(self) -> bool:
        """Its process has ended."""
        return self.process.exitcode is not None

    def send(self, function: Callable[[Any], Any], job: Any) -> None:
        """Give it a job; a process that has died shows when its answer is read.

        Raises:
            Exception: the job can't be pickled.
        """
        message = pickle.dumps((function, job))
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def answer(self) -> tuple[Any, Exception | None]:
        """Result and error of its job, once the pipe is ready or the process has died."""
        try:
            # Processes of its own may hold the pipe open after it has died.
            if not self.pipe.poll():
                raise EOFError
            result, error, where = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(_PATIENCE)
            return None, WorkerDiedError(f"its process died ({_how(self.process.exitcode)})")
        if error is not None:
            error.__cause__ = _RemoteError(where)
        return result, error

    def end(self) -> None:
        """End the process, idle or busy; it is gone when this returns."""
        self.pipe.close()  # which ends an idle one
        for stop in (None, self.process.terminate, self.process.kill):
            if stop is not None:
                stop()
            self.process.join(_PATIENCE)
            if self.dead:
                self.process.close()
                return


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}; was there enough memory?" if name == "SIGKILL" else name


@contextlib.contextmanager
def _held_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from a process that is being started, until it ignores it by itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Worker processes, kept from one call of `run` to the next; leaving the context ends them, whatever they do.

    The processes are fresh ones (`spawn`): Python's fork server was seen to hang now and then when a worker had died.
    """

    def __init__(self, count: int) -> None:
        """Keep at most `count` processes; they start with the first jobs."""
        self._count = count
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Any]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_busy()
        while self._idle:
            self._idle.pop().end()

    def _end_busy(self) -> None:
        for worker, _ in self._busy.values():
            worker.process.terminate()
        while self._busy:
            self._busy.popitem()[1][0].end()

    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[Done[Job, Result], None, None]:
        """Yield each job with its result, in the order in which they end.

        A worker that dies (out of memory, say) fails the job that it had, and no other.

        Args:
            function: importable by name, as the workers are fresh processes.
            jobs: what to call it with.
        """
        waiting = list(reversed(jobs))
        busy = self._busy
        try:
            while waiting or busy:
                while waiting and len(busy) < self._count:
                    job = waiting.pop()
                    worker = self._take()
                    busy[worker.pipe] = (worker, job)
                    try:
                        worker.send(function, job)
                    except Exception as error:
                        self._idle.append(busy.pop(worker.pipe)[0])
                        yield Done(job, error=error)
                ready = multiprocessing.connection.wait(list(busy), _PATIENCE)
                for worker, job in [pair for pair in busy.values() if pair[0].pipe in ready or pair[0].dead]:
                    result, problem = worker.answer()
                    del busy[worker.pipe]
                    if isinstance(problem, WorkerDiedError):
                        worker.end()
                    else:
                        self._idle.append(worker)
                    yield Done(job, result, problem)
        finally:
            self._end_busy()

    def _take(self) -> _Worker:
        """An idle worker that lives, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.dead:
                return worker
            worker.end()
        return _Worker()


def _work(pipe: Connection) -> None:
    """Do the jobs that come through the pipe, until it is closed."""
    _begin_worker()
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, job = pickle.loads(message)
            answer = pickle.dumps((function(job), None, ""))
        except Exception as error:
            answer = _dumped(error, traceback.format_exc())
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _dumped(error: Exception, where: str) -> bytes:
    """An answer that tells of an error; one that does not survive the way goes as its text."""
    try:
        answer = pickle.dumps((None, error, where))
        pickle.loads(answer)
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), where))
    return answer


def _begin_worker() -> None:
    """Leave Ctrl-C, which reaches every process of the terminal, to the parent; end when the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: Any) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
