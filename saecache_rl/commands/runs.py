"""What the commands share: parts made from their configuration, capacities, one policy's run, and a run's summary."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import hydra.utils
import numba
import numpy as np
import numpy.typing as npt
from hydra.errors import InstantiationException

from saecache_rl.agents import Agent
from saecache_rl.cache.policy import Policy
from saecache_rl.commands import live_runs
from saecache_rl.commands.settings import whole_number_of_blocks
from saecache_rl.engines.capacity import auto_capacity, ceiling, smallest_capacity, sweep_capacities
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError, nearest
from saecache_rl.vocabulary import QUEUE_NAMES, TOKEN_TYPE_NAMES
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

Kind = TypeVar("Kind")
HitTokens = npt.NDArray[np.int64]
Node = Mapping[str, Any]


def make(node: Node, group: str, kind: type[Kind] | None = None) -> Any:
    """Instantiate a node of the configuration.

    Args:
        node: with `_target_`.
        group: its group, for messages.
        kind: what it must be.

    Raises:
        InputError: what it names can't be imported, or is of another kind, or refuses its options.
    """
    if "_target_" not in node:
        raise InputError(
            f"{group}: its YAML names no _target_; it is the dotted name of the class or function that makes it"
        )
    try:
        thing = hydra.utils.instantiate(dict(node), _convert_="all")
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, InputError):
                raise cause from None
            if isinstance(cause, ImportError):
                raise InputError(f"{group}: cannot import {node['_target_']} ({cause})") from None
            last, cause = cause, cause.__cause__
        raise last from None
    if kind is not None and not isinstance(thing, kind):
        raise InputError(f"{group}: {node['_target_']} makes a {type(thing).__name__}, expected a {kind.__name__}")
    return thing


def make_trace(workload: Node, seed: int | None) -> Trace:
    """Make a workload's trace.

    Args:
        workload: its node; `num_blocks` in it, the workload's own capacity, is not the loader's.
        seed: put in the place of `workload.seed` where there is one; None leaves that.

    Raises:
        InputError: it cannot be had as asked.
    """
    node = {key: value for key, value in workload.items() if key != "num_blocks"}
    if seed is not None and "seed" in node:
        node["seed"] = seed
    trace: Trace = make(node, "workload", Trace)
    trace.validate()
    return trace


def make_agent(node: Node) -> Agent:
    """Make an agent; see `make`."""
    agent: Agent = make(node, "agent", Agent)
    return agent


def predictor_name(predictor: Any) -> str:
    """Name of a predictor in results."""
    return str(getattr(predictor, "name", type(predictor).__name__))


def capacities(value: Any, trace: Trace, workload: Node) -> list[int]:
    """The capacities, in blocks, that an option `num_blocks` asks for.

    Args:
        value: a number, a list of numbers, ``auto`` (the workload's own where it has one) or ``sweep``.
        trace: of the workload.
        workload: its node.

    Raises:
        InputError: another value, or a capacity below the largest request.
    """
    if value == "auto":
        own = workload.get("num_blocks")
        found = [whole_number_of_blocks(own)] if own is not None else [auto_capacity(trace)]
    elif value == "sweep":
        found = list(sweep_capacities(trace))
    elif isinstance(value, (list, tuple)):
        found = [whole_number_of_blocks(v) for v in value]
        if not found:
            raise InputError("num_blocks=[]: give at least one capacity")
        if len(set(found)) != len(found):
            raise InputError(f"num_blocks={list(value)}: a capacity is named twice")
    elif isinstance(value, str):
        hint = nearest(value, ("auto", "sweep"))
        raise InputError(f"num_blocks={value}: neither a number nor a list of them, auto or sweep{hint}")
    else:
        found = [whole_number_of_blocks(value)]
    least = smallest_capacity(trace)
    for num_blocks in found:
        if num_blocks < least:
            raise InputError(
                f"num_blocks={num_blocks}: the largest request of {trace.name} needs {least} blocks of "
                f"{trace.block_size} tokens; "
                f"give at least {least}, or auto"
            )
    return [int(n) for n in found]


def one_capacity(value: Any, trace: Trace, workload: Node) -> int:
    """The one capacity that an option `num_blocks` asks for; see `capacities`.

    Raises:
        InputError: it asks for several.
    """
    if value == "sweep" or isinstance(value, (list, tuple)):
        raise InputError(
            f"num_blocks={value}: one run has one capacity; several are compared by python -m saecache_rl.compare"
        )
    return capacities(value, trace, workload)[0]


def reference(policy: Policy, trace: Trace, num_blocks: int, sessions: Sessions) -> npt.NDArray[np.int32]:
    """Serve the whole trace under a policy that nobody tunes; return its hit tokens, (R,)."""
    engine = Simulator(trace, policy, num_blocks, sessions=sessions)
    engine.reset()
    engine.serve(trace.num_requests, None)
    return np.asarray(engine.hit_tokens, np.int32).copy()


@dataclass(frozen=True)
class Measured:
    """What one run of an agent tells by itself.

    Attributes:
        hit_tokens, hit_blocks: sums over all requests.
        recomputed_tokens: percentiles over requests of prompt tokens that no cache served.
        evictions: blocks evicted.
        sampled_choices: choices of a victim that looked at a sample of the candidates.
        wall_seconds: of serving and learning.
        block_accesses_per_second: matchable blocks over `wall_seconds`.
        oracle: the policy or the predictor sees ahead.
        predictor: its name.
        ttft_ms: mean and percentiles of the times to the first token; None in simulation.
        live: what else a live engine tells; None in simulation.
    """

    hit_tokens: int
    hit_blocks: int
    recomputed_tokens: dict[str, float]
    evictions: int
    sampled_choices: int
    wall_seconds: float
    block_accesses_per_second: float
    oracle: bool
    predictor: str
    ttft_ms: dict[str, float] | None = None
    live: dict[str, Any] | None = None

    @staticmethod
    def of(engine: Any, agent: Agent, predictor: Any, sampled_choices: int, wall_seconds: float) -> Measured:
        """Read a finished run off its engine."""
        trace: Trace = engine.trace
        recomputed = trace.prompt_tokens - np.asarray(engine.hit_tokens)
        p50, p95, p99 = np.percentile(recomputed, [50, 95, 99])
        return Measured(
            hit_tokens=int(np.sum(engine.hit_tokens, dtype=np.int64)),
            hit_blocks=int(np.sum(engine.hit_blocks, dtype=np.int64)),
            recomputed_tokens={"p50": float(p50), "p95": float(p95), "p99": float(p99)},
            evictions=int(engine.evictions),
            sampled_choices=sampled_choices,
            wall_seconds=wall_seconds,
            block_accesses_per_second=float(trace.matchable_blocks.sum(dtype=np.int64)) / max(wall_seconds, 1e-9),
            oracle=agent.policy.oracle or (agent.policy.uses_predictor and bool(predictor.oracle)),
            predictor=predictor_name(predictor),
            ttft_ms=live_runs.percentiles(engine.ttft_ms) if hasattr(engine, "ttft_ms") else None,
            live=live_runs.facts(engine),
        )


@dataclass(frozen=True)
class Summary:
    """One run beside LRU and the optimum: `summary.json`, and flattened a row of `results.csv`."""

    workload: str
    engine: str
    agent: str
    seed: int
    num_blocks: int
    block_size: int
    requests: int
    prompt_tokens: int
    hit_tokens: int
    token_hit_ratio: float
    block_hit_ratio: float
    ceiling_token_hit_ratio: float
    ttft_ms: dict[str, float] | None
    recomputed_tokens: dict[str, float]
    evictions: int
    reference: dict[str, float]
    gap_closed: float | None
    wall_seconds: float
    block_accesses_per_second: float
    oracle: bool
    sessions: str
    versions: dict[str, str]
    predictor: str
    window: int
    sampled_choices: int
    trace_digest: str
    workload_notes: dict[str, str]
    live: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON wants it, keys in the order above; `live` of a live engine alone."""
        row = asdict(self)
        if self.live is None:
            del row["live"]
        return row

    def flat(self) -> dict[str, Any]:
        """One level: ``ttft_ms_mean``, ``reference_lru``, …; the notes are one JSON text."""
        row: dict[str, Any] = {}
        for key, value in self.as_dict().items():
            if key == "ttft_ms":
                row |= {f"{key}_{part}": (value or {}).get(part) for part in ("mean", "p50", "p95", "p99")}
            elif key in ("workload_notes", "live"):
                row[key] = json.dumps(value, sort_keys=True)
            elif isinstance(value, dict):
                row |= {f"{key}_{part}": item for part, item in value.items()}
            else:
                row[key] = value
        return row


@dataclass(frozen=True)
class TraceFacts:
    """What a summary says of a trace.

    Attributes:
        workload: its name.
        block_size, requests, prompt_tokens, matchable_blocks: of all requests.
        ceiling_token_hit_ratio: of an infinite cache.
        digest, notes: the trace's.
    """

    workload: str
    block_size: int
    requests: int
    prompt_tokens: int
    matchable_blocks: int
    ceiling_token_hit_ratio: float
    digest: str
    notes: dict[str, str]

    @staticmethod
    def of(trace: Trace, workload: str) -> TraceFacts:
        """Read them off a trace."""
        return TraceFacts(
            workload=workload,
            block_size=trace.block_size,
            requests=trace.num_requests,
            prompt_tokens=int(trace.prompt_tokens.sum(dtype=np.int64)),
            matchable_blocks=int(trace.matchable_blocks.sum(dtype=np.int64)),
            ceiling_token_hit_ratio=ceiling(trace).token_hit_ratio,
            digest=trace.digest,
            notes={key: str(value) for key, value in trace.notes.items()},
        )


def summarize(
    measured: Measured,
    trace: TraceFacts,
    *,
    engine: str,
    agent: str,
    seed: int,
    num_blocks: int,
    window: int,
    sessions: str,
    lru_hit_tokens: int,
    optimum_hit_tokens: int,
) -> Summary:
    """Put a run beside its references."""
    prompt_tokens = trace.prompt_tokens
    return Summary(
        workload=trace.workload,
        engine=engine,
        agent=agent,
        seed=seed,
        num_blocks=num_blocks,
        block_size=trace.block_size,
        requests=trace.requests,
        prompt_tokens=prompt_tokens,
        hit_tokens=measured.hit_tokens,
        token_hit_ratio=measured.hit_tokens / prompt_tokens,
        block_hit_ratio=measured.hit_blocks / trace.matchable_blocks if trace.matchable_blocks else 0.0,
        ceiling_token_hit_ratio=trace.ceiling_token_hit_ratio,
        ttft_ms=measured.ttft_ms,
        recomputed_tokens=measured.recomputed_tokens,
        evictions=measured.evictions,
        reference={"lru": lru_hit_tokens / prompt_tokens, "optimum": optimum_hit_tokens / prompt_tokens},
        gap_closed=gap_closed(measured.hit_tokens, lru_hit_tokens, optimum_hit_tokens),
        wall_seconds=measured.wall_seconds,
        block_accesses_per_second=measured.block_accesses_per_second,
        oracle=measured.oracle,
        sessions=sessions,
        versions=versions() | ({} if measured.live is None else {"vllm": live_runs.vllm_version()}),
        predictor=measured.predictor,
        window=window,
        sampled_choices=measured.sampled_choices,
        trace_digest=trace.digest,
        workload_notes=trace.notes,
        live=measured.live,
    )


def gap_closed(policy: float, lru: float, optimum: float) -> float | None:
    """(policy - LRU) / (optimum - LRU); None where the optimum is no better than LRU."""
    return (policy - lru) / (optimum - lru) if optimum > lru else None


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    try:
        own = metadata.version("saecache-rl")
    except metadata.PackageNotFoundError:
        own = "source"
    return {
        "saecache_rl": own,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def metrics_line(stats: WindowStats, params: Mapping[str, float], reward: float) -> dict[str, Any]:
    """A line of `metrics.jsonl`: what the engine reports of a window, and the parameters it was served under."""
    line: dict[str, Any] = {
        "window": stats.window,
        "first_request": stats.first_request,
        "requests": stats.requests,
        "time": stats.time,
        "prompt_tokens": stats.prompt_tokens,
        "hit_tokens": stats.hit_tokens,
        "token_hit_ratio": stats.token_hit_ratio,
        "matchable_blocks": stats.matchable_blocks,
        "hit_blocks": stats.hit_blocks,
        "block_hit_ratio": stats.block_hit_ratio,
        "evictions": stats.evictions,
        "sampled_choices": stats.sampled_choices,
        "ttft_ms_mean": stats.ttft_ms_mean,
        "reward": reward,
    }
    for name in ("queue_hits", "queue_ghost_misses", "queue_evictions", "queue_held"):
        line[name] = dict(zip(QUEUE_NAMES, getattr(stats, name).tolist(), strict=True))
    for name in ("type_accesses", "type_hits", "type_ghost_misses", "type_evictions"):
        line[name] = dict(zip(TOKEN_TYPE_NAMES, getattr(stats, name).tolist(), strict=True))
    for name in ("offset_accesses", "offset_hits"):
        line[name] = getattr(stats, name).tolist()
    for name in ("gap_count", "gap_log_sum", "gap_log_square_sum"):
        line[name] = dict(zip(("chat", "agentic"), getattr(stats, name).tolist(), strict=True))
    line["params"] = dict(params)
    return _plain(line)  # type: ignore[no-any-return]


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value
