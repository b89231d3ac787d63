"""One online run: an agent serves a workload window by window, and learns from each.

    python -m saecache_rl.train +workload=agentic_shift

Read `main` from top to bottom: that is the run.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl import checkpoint
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.optimum import Optimum
from saecache_rl.commands import live_runs, runs
from saecache_rl.commands.cli import command
from saecache_rl.commands.interrupts import HeldInterrupts
from saecache_rl.commands.settings import TrainSettings, write
from saecache_rl.engines.capacity import ceiling
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.live_settings import is_live
from saecache_rl.envs.tuning import PrefixCacheTuningEnv
from saecache_rl.errors import InputError
from saecache_rl.tracking.plots import Course, plot_run
from saecache_rl.tracking.sinks import LocalSink, RunInfo
from saecache_rl.tracking.terminal import percent, print_table, progress
from saecache_rl.tracking.weights_and_biases import sinks
from saecache_rl.workloads.sessions import find_sessions
from saecache_rl.workloads.trace import Trace


def run(settings: TrainSettings, folder: Path, trace: Trace | None = None) -> runs.Summary:
    """Serve a workload under an agent and leave the run's folder.

    Args:
        settings: all options; with `resume` set, `folder` holds an interrupted run that is gone on with.
        folder: where everything is written; it exists.
        trace: the requests; None makes them from `settings.workload`.

    Raises:
        InputError: the options or their data can't be run.
        KeyboardInterrupt: interrupted, with a checkpoint in the folder.
    """
    # What is served, and by whom.
    if trace is None:
        trace = runs.make_trace(settings.workload, settings.seed if settings.reseed_workload else None)
    trace = live_runs.as_served(trace, settings.engine)
    workload = str(settings.workload.get("name", trace.name))
    num_blocks = runs.one_capacity(settings.num_blocks, trace, settings.workload)
    session_source = settings.engine.get("sessions", "lineage")
    sessions = find_sessions(trace, session_source)
    agent = runs.make_agent(settings.agent)
    predictor = runs.make(settings.predictor, "predictor")
    env = PrefixCacheTuningEnv(
        trace,
        engine=settings.engine,
        num_blocks=num_blocks,
        window=settings.window,
        policy=agent.policy,
        sessions=session_source,
        predictor=predictor,
        reward=settings.reward,
    )
    plain = None
    if is_live(settings.engine):
        plain = live_runs.PlainVLLM(settings.engine, trace, num_blocks, sessions)
    env.reset(seed=settings.seed)
    agent.reset(settings.seed)

    # Where it stands: at the beginning, or at the checkpoint of an interrupted run.
    stats = WindowStats.empty()
    windows, seconds, sampled_choices, checkpoint_file = 0, 0.0, 0, folder / "checkpoint.npz"
    hit_tokens, prompt_tokens = 0, 0
    params_by_window: list[Any] = []
    if settings.resume is None:
        write(settings, folder)
    elif checkpoint_file.exists():
        saved = checkpoint.load(checkpoint_file)
        if saved["trace"] != trace.digest:
            raise InputError(f"{folder}: the workload's data has changed since the run began; start it anew")
        env.engine.load_state_dict(saved["engine"])
        agent.load_state_dict(saved["agent"])
        stats = WindowStats(**saved["stats"])
        windows, seconds, sampled_choices = saved["windows"], saved["seconds"], saved["sampled_choices"]
        hit_tokens, prompt_tokens = saved["hit_tokens"], saved["prompt_tokens"]
        params_by_window = list(saved["params"])

    def save_checkpoint() -> None:
        local.sync()
        state = {
            "trace": trace.digest,
            "engine": env.engine.state_dict(),
            "agent": agent.state_dict(),
            "stats": asdict(stats),
            "windows": windows,
            "seconds": seconds,
            "sampled_choices": sampled_choices,
            "hit_tokens": hit_tokens,
            "prompt_tokens": prompt_tokens,
            "params": np.array(params_by_window, np.float64).reshape(windows, len(agent.policy.space())),
        }
        checkpoint.save(checkpoint_file, state)

    local = LocalSink(keep=windows)
    trackers = [local, *sinks(settings.wandb)]
    info = RunInfo(folder, folder.name, workload, agent.name, settings.seed, _config(settings, num_blocks))
    for tracker in trackers:
        tracker.start(info)

    # The run: act, serve, observe, record.
    try:
        title = f"{agent.name} on {workload}"
        with (
            HeldInterrupts() as interrupts,
            progress(title, trace.num_requests, "requests", env.engine.position) as show,
        ):
            while not env.engine.done:
                began = time.perf_counter()
                params = agent.act(stats)
                _, reward, _, _, outcome = env.serve(params)
                stats = outcome["stats"]
                agent.observe(stats, float(reward))
                seconds += time.perf_counter() - began
                windows += 1
                sampled_choices += stats.sampled_choices
                hit_tokens += stats.hit_tokens
                prompt_tokens += stats.prompt_tokens
                params_by_window.append(params.values)
                line = runs.metrics_line(stats, params.as_dict(), float(reward))
                for tracker in trackers:
                    tracker.log(env.engine.position, line)
                show(env.engine.position, f"hit ratio {hit_tokens / prompt_tokens:.4f}")
                if plain is not None and plain.beside:
                    plain.follow(env.engine.position)
                if interrupts.requested or windows % settings.checkpoint_every == 0 or env.engine.done:
                    save_checkpoint()
                if interrupts.requested and not env.engine.done:
                    raise KeyboardInterrupt

        # The frame around the result: LRU and the optimum on the same requests, and what no cache could exceed.
        env.close()
        measured = runs.Measured.of(env.engine, agent, predictor, sampled_choices, seconds)
        if plain is not None:
            with progress("vLLM's LRU without the plug-in", trace.num_requests, "requests") as show:
                plain.follow(trace.num_requests, settings.window, lambda position: show(position, ""))
            plain.close()
            measured = plain.result().beside(measured)
            lru = plain.result().hit_tokens.astype(np.int32)
            optimum = runs.reference(Optimum(), trace, num_blocks, sessions)
        else:
            with progress("references", 2, "runs") as show:
                lru = runs.reference(LRU(), trace, num_blocks, sessions)
                show(1, "")
                optimum = runs.reference(Optimum(), trace, num_blocks, sessions)
                show(2, "")
        summary = runs.summarize(
            measured,
            runs.TraceFacts.of(trace, workload),
            engine=settings.engine["name"],
            agent=agent.name,
            seed=settings.seed,
            num_blocks=num_blocks,
            window=settings.window,
            sessions=session_source,
            lru_hit_tokens=int(lru.sum(dtype=np.int64)),
            optimum_hit_tokens=int(optimum.sum(dtype=np.int64)),
        )
        figures = []
        if settings.plots:
            lru_name = "LRU" if measured.live is None else "vLLM's LRU"
            hits: dict[str, npt.NDArray[Any]] = {
                "ceiling": ceiling(trace).hit_tokens,
                "optimum": optimum,
                lru_name: lru,
                agent.name: env.engine.hit_tokens,
            }
            space = agent.policy.space()
            history = np.array(params_by_window, np.float64).reshape(windows, len(space))
            course = Course(trace, sessions, settings.window, num_blocks, agent.name, hits, space, history)
            figures = [folder / "run.png"]
            plot_run(course, figures[0])
        runs.write_json(folder / "summary.json", summary.as_dict())
    except BaseException:
        env.close()
        if plain is not None:
            plain.close()
        for tracker in trackers:
            tracker.abandon()
        raise
    for tracker in trackers:
        tracker.finish(summary.as_dict(), figures)
    print_summary(summary)
    return summary


def print_summary(summary: runs.Summary) -> None:
    """Print the run beside its references."""
    title = (
        f"{summary.workload}: {summary.requests:,} requests, {summary.prompt_tokens:,} prompt tokens, "
        f"{summary.num_blocks:,} blocks of {summary.block_size} tokens"
    )
    reference = summary.reference
    oracle = " (oracle)" if summary.oracle else ""
    rows = [
        [
            "LRU" if summary.live is None else "vLLM's LRU",
            percent(reference["lru"]),
            percent(None if summary.gap_closed is None else 0.0),
        ],
        [f"{summary.agent}{oracle}", percent(summary.token_hit_ratio), percent(summary.gap_closed)],
        ["optimum (oracle)", percent(reference["optimum"]), percent(None if summary.gap_closed is None else 1.0)],
        ["ceiling (infinite cache)", percent(summary.ceiling_token_hit_ratio), "-"],
    ]
    print_table(title, ["", "token hit ratio", "gap closed"], rows)
    p50, p95, p99 = (f"{summary.recomputed_tokens[p]:,.0f}" for p in ("p50", "p95", "p99"))
    print(
        f"{summary.agent}: recomputed prompt tokens a request p50 {p50}, p95 {p95}, p99 {p99}; "
        f"{summary.evictions:,} evictions; {summary.wall_seconds:.1f} s; "
        f"sessions by {summary.sessions}, predictor {summary.predictor}"
    )
    if summary.live is not None and summary.ttft_ms is not None:
        print(live_runs.describe(summary.ttft_ms, summary.live, summary.workload_notes))


def _config(settings: TrainSettings, num_blocks: int) -> dict[str, Any]:
    return asdict(settings) | {"num_blocks": num_blocks}


@command("train", TrainSettings)
def main(settings: TrainSettings, folder: Path) -> float:
    """Run, or go on with, the run in `folder`."""
    finished = folder / "summary.json"
    if settings.resume is not None and finished.exists():
        summary = runs.Summary(**json.loads(finished.read_text(encoding="utf-8")))
        print("this run is complete already")
        print_summary(summary)
    else:
        summary = run(settings, folder)
    print(folder)
    return summary.token_hit_ratio


if __name__ == "__main__":
    main()
