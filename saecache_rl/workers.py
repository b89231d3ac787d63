"""Independent jobs over all local cores; a job that fails, or takes its process with it, takes no other along."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
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


def run_all(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int
) -> Generator[Done[Job, Result], None, None]:
    """Yield each job with its result, in the order in which they end.

    A worker that dies (out of memory, say) fails the job that killed it; the others at that time are run again, alone.
    When the consumer leaves early, by an exception too, the workers are ended.

    Args:
        function: importable by name, as the workers are fresh processes.
        jobs: what to call it with.
        workers: processes.
    """
    waiting = list(reversed(jobs))
    suspects: list[Job] = []
    while waiting or suspects:
        alone = bool(suspects)
        batch = [suspects.pop()] if alone else waiting
        lost = yield from _run(function, batch, 1 if alone else workers)
        if alone and lost:
            yield Done(lost[0], error=RuntimeError("its process died; was there enough memory?"))
        else:
            suspects += lost


def _run(
    function: Callable[[Job], Result], waiting: list[Job], workers: int
) -> Generator[Done[Job, Result], None, list[Job]]:
    """Run `waiting`, last first, emptying it; return the jobs that were running when a worker died."""
    pool = ProcessPoolExecutor(min(workers, len(waiting)), mp_context=_context(), initializer=_begin_worker)
    running: dict[Future[Result], Job] = {}
    lost: list[Job] = []
    try:
        while (waiting or running) and not lost:
            while waiting and len(running) < workers:
                job = waiting.pop()
                try:
                    running[pool.submit(function, job)] = job
                except BrokenProcessPool:
                    waiting.append(job)
                    break
            if not running:
                break
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
        pool.shutdown(wait=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _end(pool)
    return lost


def _end(pool: ProcessPoolExecutor) -> None:
    """End what a pool that was left early still runs."""
    processes: Iterable[Any] = (getattr(pool, "_processes", None) or {}).values()
    for process in list(processes):
        if process.is_alive():
            process.terminate()


def _context() -> Any:
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Imported once, before the workers fork off.
    context.set_forkserver_preload(["saecache_rl.compare_jobs"])
    return context


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
