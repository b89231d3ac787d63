"""A job that fails, or takes its process with it, takes no other along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saecache_rl.commands.workers import Workers


class UnreadableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def work(job: str) -> str:
    if job == "raise":
        raise ValueError("broken")
    if job == "die":
        os._exit(7)
    if job == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "leaves a process":
        # As an engine's own processes do, it holds the worker's pipes open after the worker has died.
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            time.sleep(600)
        os._exit(3)
    if job == "unreadable error":
        raise UnreadableError("x", "y")
    if job == "unreadable result":
        return lambda: None  # type: ignore[return-value]
    if job == "sleep":
        time.sleep(600)
    return job.upper()


def test_failures_are_named_and_the_others_done() -> None:
    jobs = ["a", "raise", "die", "b", "c"]
    with Workers(2) as workers:
        ends = {end.job: end for end in workers.run(work, jobs)}
        assert sorted(ends) == sorted(jobs)
        assert [ends[job].result for job in "abc"] == ["A", "B", "C"]
        assert isinstance(ends["raise"].error, ValueError)
        assert 'raise ValueError("broken")' in str(ends["raise"].error.__cause__)
        assert str(ends["die"].error) == "its process died (exit code 7)"
        assert [end.result for end in workers.run(work, ["d"])] == ["D"]
        assert list(workers.run(work, [])) == []


def test_leaving_early_ends_the_workers() -> None:
    began = time.monotonic()
    with Workers(2) as workers:
        assert next(workers.run(work, ["a", "sleep", "sleep"])).result == "A"
    assert time.monotonic() - began < 300


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_way_to_end_fails_one_job_alone(count: int) -> None:
    ways = {
        "killed": "its process died (SIGKILL; was there enough memory?)",
        "die": "its process died (exit code 7)",
        "leaves a process": "its process died (exit code 3)",
        "unreadable error": "UnreadableError: x",
        "unreadable result": "pickle",
    }
    jobs = [name for way in ways for name in (way, f"after {way}")]
    with Workers(count) as workers:
        ends = {end.job: end for end in workers.run(work, jobs)}
        for way, says in ways.items():
            assert says in str(ends[way].error)
            assert ends[f"after {way}"].result == f"AFTER {way.upper()}"
        # One that dies while it has nothing to do is replaced.
        for worker in list(workers._idle):
            worker.process.kill()
            worker.process.join()
        assert {end.result for end in workers.run(work, ["d", "e"])} == {"D", "E"}
        (end,) = workers.run(work, [lambda: None])  # type: ignore[list-item]
        assert end.error is not None


def test_an_error_of_the_caller_ends_the_workers_though_its_traceback_is_kept() -> None:
    workers = Workers(2)

    def interrupted() -> None:
        with workers:
            for _ in workers.run(work, ["a", "sleep", "sleep"]):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as kept:
        interrupted()
    assert kept.tb is not None
    assert not workers._busy
    assert not workers._idle


SCRIPT = """
import sys
from tests.commands.test_workers import work
from saecache_rl.commands.workers import Workers
if __name__ == "__main__":
    with Workers(int(sys.argv[1])) as workers:
        print([end.result for end in workers.run(work, ["a", "b"])])
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_interpreter_ends_quietly_after_them(count: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "script.py", count],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(eval(done.stdout)) == ["A", "B"]
