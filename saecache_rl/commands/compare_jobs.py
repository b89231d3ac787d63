"""The jobs of a comparison, as worker processes run them: a seed's trace made once, and one agent at one capacity.

Everything that goes between the processes is plain data; traces go through files.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.commands import live_runs, runs
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.live_settings import is_live
from saecache_rl.errors import InputError
from saecache_rl.workloads.sessions import find_sessions
from saecache_rl.workloads.trace import Trace


@dataclass(frozen=True)
class Entry:
    """An agent of the comparison, whole.

    Attributes:
        name: in results, unique among them.
        agent, predictor: nodes of the configuration.
        window, reward: as the options of these names.
    """

    name: str
    agent: dict[str, Any]
    predictor: dict[str, Any]
    window: int
    reward: str


@dataclass(frozen=True)
class Prepared:
    """What is known of a seed's trace before anyone serves it.

    Attributes:
        seed: which seed.
        file: the trace, relative to the run's folder.
        facts: of the trace.
        capacities: in blocks, as `num_blocks` asks for.
    """

    seed: int
    file: str
    facts: runs.TraceFacts
    capacities: list[int]


@dataclass(frozen=True)
class Preparation:
    """What makes a seed's trace: the run's folder, and the options of these names."""

    folder: str
    workload: dict[str, Any]
    seed: int
    reseed_workload: bool
    num_blocks: Any
    engine: dict[str, Any]
    sessions: str

    @property
    def title(self) -> str:
        """For messages."""
        return f"the workload with seed {self.seed}"


def prepare(job: Preparation) -> Prepared:
    """Make a seed's trace, save it in the run's folder, and find its capacities.

    Raises:
        InputError: the workload can't be had as asked, or a capacity is too small for it.
    """
    trace = runs.make_trace(job.workload, job.seed if job.reseed_workload else None)
    trace = live_runs.as_served(trace, job.engine)
    found = runs.capacities(job.num_blocks, trace, job.workload)
    find_sessions(trace, job.sessions)  # refused here where the trace has no ids, not in every job
    folder, file = Path(job.folder), f"cache/trace-{trace.digest[:16]}.npz"
    (folder / "cache").mkdir(exist_ok=True)
    if not (folder / file).exists():
        # Two seeds of a recorded workload write the same trace, perhaps at once.
        own = folder / "cache" / f"seed-{job.seed}.npz"
        trace.save(own)
        own.replace(folder / file)
    return Prepared(
        seed=job.seed,
        file=file,
        facts=runs.TraceFacts.of(trace, str(job.workload.get("name", trace.name))),
        capacities=found,
    )


@dataclass(frozen=True)
class Job:
    """One agent at one capacity with one seed.

    Attributes:
        folder: of the run.
        trace: file of the trace, relative to the folder.
        digest: of the trace.
        entry: the agent.
        num_blocks, seed, engine, sessions: as the options of these names.
    """

    folder: str
    trace: str
    digest: str
    entry: Entry
    num_blocks: int
    seed: int
    engine: dict[str, Any]
    sessions: str

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.entry.name} at {self.num_blocks:,} blocks, seed {self.seed}"

    @property
    def key(self) -> str:
        """Equal for jobs that would give the same result, whatever the agent is called."""
        entry = asdict(self.entry)
        entry.pop("name")
        entry["agent"].pop("name", None)
        engine = self.engine if is_live(self.engine) else self.engine["name"]
        parts = [self.digest, entry, self.num_blocks, self.seed, engine, self.sessions]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def measure(job: Job) -> runs.Measured:
    """Serve the job's trace under its agent.

    Raises:
        InputError: the trace's file has changed, or the agent refuses the trace.
    """
    from saecache_rl.envs.tuning import PrefixCacheTuningEnv

    trace = _trace(str(Path(job.folder) / job.trace))
    if trace.digest != job.digest:
        raise InputError(f"{job.folder}/{job.trace}: not the trace that the comparison began with; start it anew")
    agent = runs.make_agent(job.entry.agent)
    predictor = runs.make(job.entry.predictor, "predictor")
    live = is_live(job.engine)
    if live and isinstance(agent.policy, LRU):
        # LRU of a live engine is vLLM as it is, nothing of ours in it.
        plain = live_runs.lru_without_plugin(
            job.engine, trace, job.num_blocks, find_sessions(trace, job.sessions), job.entry.window
        )
        return plain.measured(agent, predictor)
    env = PrefixCacheTuningEnv(
        trace,
        # An oracle is a bound, at the simulator's instant clock.
        engine="simulator" if live and agent.policy.oracle else job.engine,
        num_blocks=job.num_blocks,
        window=job.entry.window,
        policy=agent.policy,
        sessions=job.sessions,
        predictor=predictor,
        reward=job.entry.reward,
    )
    env.reset(seed=job.seed)
    agent.reset(job.seed)
    stats, sampled_choices = WindowStats.empty(), 0
    began = time.perf_counter()
    while not env.engine.done:
        _, reward, _, _, outcome = env.serve(agent.act(stats))
        stats = outcome["stats"]
        agent.observe(stats, float(reward))
        sampled_choices += stats.sampled_choices
    seconds = time.perf_counter() - began
    env.close()
    return runs.Measured.of(env.engine, agent, predictor, sampled_choices, seconds)


@lru_cache(maxsize=2)
def _trace(file: str) -> Trace:
    return Trace.load(Path(file))
