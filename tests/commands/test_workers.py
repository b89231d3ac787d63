"""A job that fails, or takes its process with it, takes no other along."""

from __future__ import annotations

import os
import time

from saecache_rl.workers import Workers


def work(job: str) -> str:
    if job == "raise":
        raise ValueError("broken")
    if job == "die":
        os._exit(7)
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
        assert "its process died" in str(ends["die"].error)
        assert [end.result for end in workers.run(work, ["d"])] == ["D"]
        assert list(workers.run(work, [])) == []


def test_leaving_early_ends_the_workers() -> None:
    began = time.monotonic()
    with Workers(2) as workers:
        assert next(workers.run(work, ["a", "sleep", "sleep"])).result == "A"
    assert time.monotonic() - began < 300
