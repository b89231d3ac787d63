"""Agents x capacities x seeds on the same requests, over all local cores.

    python -m saecache_rl.compare +workload=agentic_shift 'agents=[lru,saecache,optimum]' num_blocks=sweep

An entry of `agents` is the name of a file of conf/agent; or a variant of one, as text, ``NAME: AGENT OVERRIDE …``, or
as a mapping ``{name: NAME, agent: AGENT, overrides: [OVERRIDE, …]}``. An override is one that `train` takes, of the
agent (``agent/queue_weights=frozen``, ``agent.token_weights.rate=0.2``), the predictor, the window or the reward. On a
command line it has to be in quotes:

    'agents=[saecache,"no_alpha: saecache agent/queue_weights=frozen"]'
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from saecache_rl.commands import compare_report, overrides, runs
from saecache_rl.commands.cli import PartialFailureError, command
from saecache_rl.commands.compare_jobs import Entry, Job, Preparation, Prepared, measure, prepare
from saecache_rl.commands.settings import CompareSettings, refuse_used, write
from saecache_rl.commands.workers import Workers, cores
from saecache_rl.engines.vllm.live_settings import is_live
from saecache_rl.errors import InputError, nearest
from saecache_rl.tracking.terminal import print_table, progress
from saecache_rl.tracking.weights_and_biases import sinks

JOURNAL = "journal.jsonl"
_VARIABLE = ("agent", "predictor", "window", "reward")


def run(settings: CompareSettings, folder: Path) -> tuple[compare_report.Comparison, dict[str, str]]:
    """Run what is not yet in the folder's journal, and leave results.csv, table.md and hit_ratio.png.

    Returns the comparison, and what failed: the run's title to its error.

    Args:
        settings: all options; `agents` as the command line gives them, or as the folder's configuration has them.
        folder: where everything is written; it exists.

    Raises:
        InputError: the options or their data can't be run.
        KeyboardInterrupt: interrupted; results so far are written.
    """
    if settings.resume is None:
        refuse_used(folder)
        settings.agents = [asdict(entry) for entry in entries(settings)]
    agents = [Entry(**entry) for entry in settings.agents]
    for entry in agents:
        runs.make_agent(entry.agent)  # refused here, not in every job
        runs.make(entry.predictor, "predictor")
    # Live engines are timed, so that they don't run beside each other unless that is asked for.
    with Workers(settings.workers or (1 if is_live(settings.engine) else cores())) as workers:
        prepared = _prepare(settings, folder, workers)
        _refuse_other_data(folder, prepared)
        if settings.resume is None:
            write(settings, folder)
        jobs = {job.key: job for job in _jobs(settings, folder, [*_references(settings), *agents], prepared)}
        results = _journal(folder / JOURNAL)
        failures: dict[str, str] = {}
        try:
            _measure(workers, jobs, results, failures, folder, f"{len(agents)} agents on {prepared[0].facts.workload}")
        except KeyboardInterrupt:
            _comparison(settings, folder, agents, prepared, results).write_csv(folder / "results.csv")
            raise

    comparison = _comparison(settings, folder, agents, prepared, results)
    comparison.write_csv(folder / "results.csv")
    comparison.write_table(folder / "table.md")
    figures = []
    if settings.plots and comparison.rows:
        figures = [folder / "hit_ratio.png"]
        comparison.plot(figures[0])
    for tracker in sinks(settings.wandb):
        comparison.track(tracker, folder, asdict(settings), figures)
    return comparison, failures


def _measure(
    workers: Workers,
    jobs: Mapping[str, Job],
    results: dict[str, runs.Measured],
    failures: dict[str, str],
    folder: Path,
    title: str,
) -> None:
    """Run the jobs that have no result yet; add to the results, to the journal, and to the failures."""
    waiting = [job for key, job in jobs.items() if key not in results]
    done = len(jobs) - len(waiting)
    with (folder / JOURNAL).open("a", encoding="utf-8") as journal, progress(title, len(jobs), "runs", done) as show:
        for end in workers.run(measure, waiting):
            done += 1
            if end.result is None:
                failures[end.job.title] = _describe(end.error)
                _note_failure(folder / "failures.log", end.job.title, end.error)
            else:
                results[end.job.key] = end.result
                line = {"key": end.job.key, "run": end.job.title, "measured": asdict(end.result)}
                journal.write(json.dumps(line) + "\n")
                journal.flush()
                os.fsync(journal.fileno())
            show(done, end.job.title)


def entries(settings: CompareSettings) -> list[Entry]:
    """The agents that `settings.agents` names, whole; Hydra must be running.

    Raises:
        InputError: one is unknown, named twice, or has an override that does not hold.
    """
    found: list[Entry] = []
    if not settings.agents:
        raise InputError(f"agents=[]: give at least one of: {', '.join(overrides.known_options('agent'))}")
    for spec in settings.agents:
        name, agent, own = _read_spec(spec)
        known = overrides.known_options("agent")
        if agent not in known:
            raise InputError(f"agents: '{agent}' is unknown{nearest(agent, known) or ';'} known: {', '.join(known)}")
        for override in own:
            key = override.lstrip("+~").partition("=")[0]
            if key.replace("/", ".").partition(".")[0] not in _VARIABLE:
                raise InputError(
                    f"agents: '{override}' of {name} is not the agent's; a variant may change {', '.join(_VARIABLE)}"
                )
        if name in [entry.name for entry in found]:
            raise InputError(
                f"agents: '{name}' is named twice; give the variants names of their own: \"NAME: {agent} …\""
            )
        found.append(_compose(name, agent, own, settings))
    return found


def _read_spec(spec: Any) -> tuple[str, str, list[str]]:
    """Name, agent and overrides of an entry of `agents`."""
    form = 'write NAME, "NAME: AGENT OVERRIDE …", or {name: …, agent: …, overrides: ["…"]}'
    if isinstance(spec, str) and spec.strip():
        name, colon, rest = spec.partition(": ")
        words = (rest if colon else spec).split()
        if not words:
            raise InputError(f"agents: '{spec}' names no agent; {form}")
        return (name if colon else " ".join(words)).strip(), words[0], words[1:]
    if isinstance(spec, Mapping):
        known = ("name", "agent", "overrides")
        for key in spec:
            if key not in known:
                raise InputError(f"agents: no '{key}' in an entry{nearest(str(key), known)}; {form}")
        agent = spec.get("agent", spec.get("name"))
        own = spec.get("overrides") or []
        if isinstance(own, Mapping):
            own = [f"{key}={value}" for key, value in own.items()]
        if isinstance(agent, str) and isinstance(own, (list, tuple)) and all(isinstance(o, str) for o in own):
            return str(spec.get("name", " ".join([agent, *own]))), agent, list(own)
    raise InputError(f"agents: cannot read {spec!r}; {form}")


def _compose(name: str, agent: str, own: list[str], settings: CompareSettings) -> Entry:
    hydra_config = HydraConfig.get()
    common = [f"agent={agent}", f"window={settings.window}", f"reward={settings.reward}"]
    common += [o for o in hydra_config.overrides.task if o.lstrip("+~").startswith("predictor")]
    # An entry's own choice replaces a common one of the same group, which Hydra would refuse as doubled.
    keys = {o.partition("=")[0] for o in own}
    given = [o for o in common if o.partition("=")[0] not in keys] + own
    try:
        config = compose("train", overrides=given)
        chosen = {key: OmegaConf.to_container(config[key], resolve=True) for key in ("agent", "predictor")}
        return Entry(name=name, window=config.window, reward=config.reward, **chosen)  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"agents: {name}: {overrides.explain(error, 'train', given, needs_workload=False)}") from None


def _references(settings: CompareSettings) -> list[Entry]:
    """LRU and the optimum, always; their runs serve the agents `lru` and `optimum` too, being the same."""
    return [
        Entry(
            name=name,
            agent={
                "_target_": "saecache_rl.agents.Fixed",
                "name": name,
                "policy": {"_target_": f"saecache_rl.cache.policies.{name}.{kind}"},
            },
            predictor=settings.predictor,
            window=settings.window,
            reward=settings.reward,
        )
        for name, kind in (("lru", "LRU"), ("optimum", "Optimum"))
    ]


def _prepare(settings: CompareSettings, folder: Path, workers: Workers) -> list[Prepared]:
    """Every seed's trace, in the order of the seeds."""
    wanted = [
        Preparation(
            folder=str(folder),
            workload=settings.workload,
            seed=seed,
            reseed_workload=settings.reseed_workload,
            num_blocks=settings.num_blocks,
            engine=settings.engine,
            sessions=settings.engine.get("sessions", "lineage"),
        )
        for seed in settings.seeds
    ]
    if len(wanted) == 1:
        return [prepare(wanted[0])]
    found: dict[int, Prepared] = {}
    with progress("workloads", len(wanted), "seeds") as show:
        for end in workers.run(prepare, wanted):
            if end.error is not None:
                raise end.error
            assert end.result is not None
            found[end.job.seed] = end.result
            show(len(found), "")
    return [found[seed] for seed in settings.seeds]


def _refuse_other_data(folder: Path, prepared: list[Prepared]) -> None:
    """Keep the digests of the traces at the first start; refuse to go on with others."""
    file = folder / "cache" / "traces.json"
    digests = {str(trace.seed): trace.facts.digest for trace in prepared}
    if not file.exists():
        runs.write_json(file, digests)
    elif json.loads(file.read_text(encoding="utf-8")) != digests:
        raise InputError(f"{folder}: the workload's data has changed since the comparison began; start it anew")


def _jobs(settings: CompareSettings, folder: Path, agents: list[Entry], prepared: list[Prepared]) -> list[Job]:
    return [_job(settings, folder, entry, trace, n) for trace in prepared for n in trace.capacities for entry in agents]


def _job(settings: CompareSettings, folder: Path, entry: Entry, trace: Prepared, num_blocks: int) -> Job:
    return Job(
        folder=str(folder),
        trace=trace.file,
        digest=trace.facts.digest,
        entry=entry,
        num_blocks=num_blocks,
        seed=trace.seed,
        engine=settings.engine,
        sessions=settings.engine.get("sessions", "lineage"),
    )


def _journal(path: Path) -> dict[str, runs.Measured]:
    """Results of an earlier start, by key; a last line that was cut short is dropped from the file."""
    results: dict[str, runs.Measured] = {}
    if not path.exists():
        return results
    whole = 0
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
                results[record["key"]] = runs.Measured(**record["measured"])
            except (ValueError, KeyError, TypeError) as error:
                if line.endswith(b"\n"):
                    raise InputError(
                        f"{path}: a line is damaged ({error}); delete the file to run everything anew"
                    ) from None
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
    with path.open("rb+") as file:
        file.truncate(whole)
    return results


def _comparison(
    settings: CompareSettings,
    folder: Path,
    agents: list[Entry],
    prepared: list[Prepared],
    results: dict[str, runs.Measured],
) -> compare_report.Comparison:
    """The rows whose run and references are there, in the order of agents, seeds and capacities."""
    lru, optimum = _references(settings)

    def rows(entry: Entry) -> list[compare_report.Row]:
        found = []
        for trace in prepared:
            for point, num_blocks in enumerate(trace.capacities):
                jobs = [_job(settings, folder, which, trace, num_blocks) for which in (entry, lru, optimum)]
                if not all(job.key in results for job in jobs):
                    continue
                measured, below, above = (results[job.key] for job in jobs)
                summary = runs.summarize(
                    measured,
                    trace.facts,
                    engine=settings.engine["name"],
                    agent=entry.name,
                    seed=trace.seed,
                    num_blocks=num_blocks,
                    window=entry.window,
                    sessions=settings.engine.get("sessions", "lineage"),
                    lru_hit_tokens=below.hit_tokens,
                    optimum_hit_tokens=above.hit_tokens,
                )
                found.append(compare_report.Row(point, summary))
        return found

    return compare_report.Comparison(
        agents=tuple(entry.name for entry in agents),
        rows=tuple(row for entry in agents for row in rows(entry)),
        frame=tuple(row for entry in (lru, optimum) for row in rows(entry)),
    )


def _describe(error: Exception | None) -> str:
    return (
        f"{type(error).__name__}: {' '.join(str(error).split())}" if not isinstance(error, InputError) else str(error)
    )


def _note_failure(path: Path, title: str, error: Exception | None) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{title}\n{''.join(traceback.format_exception(error))}\n")


@command("compare", CompareSettings)
def main(settings: CompareSettings, folder: Path) -> None:
    """Run, or go on with, the comparison in `folder`."""
    comparison, failures = run(settings, folder)
    print_table(*comparison.terminal_table())
    print(folder)
    if failures:
        named = "; ".join(f"{title}: {problem}" for title, problem in failures.items())
        raise PartialFailureError(
            f"{len(failures)} runs failed ({named}); the others are kept, details are in {folder / 'failures.log'}; "
            f"try them again with resume={folder}"
        )


if __name__ == "__main__":
    main()
