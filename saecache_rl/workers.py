"""Independent jobs over local cores; a job that fails, or takes its process with it, takes no other along."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Job, Result]):
    """A job that ended: its result, or the error that it raised."""

    job: Job
    result: Result | None = None
    error: Exception | None = None


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


class Workers:
    """Worker processes, kept from one call of `run` to the next; leaving the context ends them, whatever they do.

    The processes are fresh ones (`spawn`): Python's fork server was seen to hang now and then when a worker had died.
    """

    def __init__(self, count: int) -> None:
        """Keep at most `count` processes; they start with the first job."""
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[Done[Job, Result], None, None]:
        """Yield each job with its result, in the order in which they end.

        A worker that dies (out of memory, say) fails the job that killed it; the others that ran at that time are run
        again, alone.

        Args:
            function: importable by name, as the workers are fresh processes.
            jobs: what to call it with.
        """
        waiting = list(reversed(jobs))
        suspects: list[Job] = []
        while waiting or suspects:
            if not suspects:
                suspects += yield from self._run(function, waiting, self._count)
                continue
            lost = yield from self._run(function, [suspects.pop()], 1)
            for job in lost:
                yield Done(job, error=RuntimeError("its process died; was there enough memory?"))

    def _run(
        self, function: Callable[[Job], Result], waiting: list[Job], at_once: int
    ) -> Generator[Done[Job, Result], None, list[Job]]:
        """Run `waiting`, last first, emptying it; return the jobs that were running when a worker died."""
        running: dict[Future[Result], Job] = {}
        lost: list[Job] = []
        while (waiting or running) and not lost:
            while waiting and len(running) < at_once:
                try:
                    running[self._processes().submit(function, waiting[-1])] = waiting[-1]
                except BrokenProcessPool:  # one died while it had nothing to do
                    if running:
                        break
                    self._end()
                    continue
                waiting.pop()
            ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                job = running.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    lost.append(job)
                except Exception as error:
                    yield Done(job, error=error)
                else:
                    yield Done(job, result)
        if lost:
            lost += running.values()
            self._end()
        return lost

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, mp_context=context, initializer=_begin_worker)
        return self._pool

    def _end(self) -> None:
        """End the processes, idle or busy."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            if process.is_alive():
                process.terminate()


def _begin_worker() -> None:
    """Leave Ctrl-C, which reaches every process of the terminal, to the parent; end when the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: Any) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
