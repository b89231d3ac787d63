"""The generated workloads: kinds of session that arrive at rates of their own in each phase, rendered to a `Trace`.

Every generated workload is `generate` with other options; conf/workload/*.yaml holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.assemble import GENERATED, RawRequests, assemble, ragged
from saecache_rl.workloads.kinds import KINDS, Draw, Kind, first_rows
from saecache_rl.workloads.options import COUNT, NOT_NEGATIVE, POSITIVE, Bounds, choice, known_keys, number, read, whole
from saecache_rl.workloads.render import Conversations, render
from saecache_rl.workloads.trace import Trace, completed_blocks

Longs = npt.NDArray[np.int64]
ARRIVALS = ("poisson", "gamma")
_KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
#: Starts that are drawn to learn how many requests one brings on average, after `max_prompt_tokens`.
_SAMPLE = 1024
_RATE = Bounds(1e-6, 1e6)
_LARGEST = 2**31 - 1  # identities and lengths are int32


@dataclass(frozen=True)
class Phase:
    """A stretch of a trace: its share of the requests, and the share of each kind among its requests."""

    name: str
    requests: float
    shares: dict[str, float]


class _Drawn(NamedTuple):
    """One kind's sessions in one phase, with what follows from the draw."""

    draw: Draw
    kind: int
    phase: int
    arrival: npt.NDArray[np.float64]  # (Q,)
    first: Longs  # (Q,) row of the session's first request
    prompt_tokens: Longs  # (Q,)
    kept: npt.NDArray[np.bool_]  # (Q,) within max_prompt_tokens


def _stream(seed: int, *path: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *path])))


def _contents(seed: int, path: tuple[int, ...], index: Longs) -> Longs:
    """Return an id of its own for each text: SplitMix64's finaliser over a seeded start and the text's number."""
    start = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    value = start + index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    contents: Longs = (value ^ (value >> np.uint64(31))).view(np.int64)
    return contents


def _starts(
    random: np.random.Generator, rate: float, begin: float, seconds: float, arrivals: str, cv: float
) -> npt.NDArray[np.float64]:
    """Draw the starts of a renewal process in [begin, begin + seconds): exponential or gamma gaps."""
    times = np.empty(0)
    while rate > 0 and (not len(times) or times[-1] < seconds):
        more = int(rate * seconds / 4) + 16
        gaps = random.exponential(1.0, more) if arrivals == "poisson" else random.gamma(cv**-2, cv**2, more)
        times = np.concatenate((times, (times[-1] if len(times) else 0.0) + np.cumsum(gaps) / rate))
    return begin + times[times < seconds]


def _finish(draw: Draw, kind: int, phase: int, max_prompt_tokens: int | None) -> _Drawn:
    turns = draw.turns
    first = np.repeat(first_rows(turns), turns)
    waited = np.cumsum(draw.gap)
    arrival = np.repeat(draw.start, turns) + waited - waited[first]
    text = np.concatenate(([0], np.cumsum(draw.body_length.sum(axis=1))))
    reasoning = np.concatenate(([0], np.cumsum(draw.body_length[:, 1])))
    rows = np.arange(len(first))
    stripped = reasoning[np.maximum(draw.user_turn, first)] - reasoning[first]
    head = np.repeat(draw.head_length.sum(axis=1), turns)
    prompt = head + text[rows] - text[first] - stripped + draw.body_length[:, 0]
    kept = np.ones(len(rows), bool)
    if max_prompt_tokens is not None and len(rows):
        kept = np.maximum.accumulate(np.where(prompt > max_prompt_tokens, rows, -1)) < first
    return _Drawn(draw, kind, phase, np.round(arrival, 6), first, prompt, kept)


def _read_phases(values: object) -> list[Phase]:
    if not isinstance(values, Mapping) or not values:
        raise InputError(f"workload.phases={values}: must name at least one phase")
    phases = []
    for name, entry in values.items():
        place = f"workload.phases.{name}"
        if not isinstance(entry, Mapping):
            raise InputError(f"{place}={entry}: must hold requests and the shares of {', '.join(KINDS)}")
        known_keys(place, entry, ["requests", *KINDS])
        shares = {k: number(f"{place}.{k}", entry.get(k, 0), NOT_NEGATIVE) for k in KINDS}
        if not sum(shares.values()) > 0:
            raise InputError(f"{place}: the shares of {', '.join(KINDS)} are all 0; give at least one")
        total = sum(shares.values())
        requests = number(f"{place}.requests", entry.get("requests"), POSITIVE)
        phases.append(Phase(str(name), requests, {k: v / total for k, v in shares.items()}))
    if len(phases) > 255:
        raise InputError("workload.phases: more than 255")
    total = sum(p.requests for p in phases)
    return [Phase(p.name, p.requests / total, p.shares) for p in phases]


def _join(drawn: list[_Drawn], seed: int) -> Conversations:
    """Put the sessions of all kinds and phases into one table."""
    width = max(d.draw.head.shape[1] for d in drawn)
    parts: dict[str, list[Longs]] = {field: [] for field in Conversations._fields}
    row = session = 0
    for d in drawn:
        head, turns = d.draw.head, d.draw.turns
        pad = ((0, 0), (0, width - head.shape[1]))
        requests = len(d.first)
        body = np.arange(requests * 3, dtype=np.int64).reshape(-1, 3)
        parts["head_content"].append(np.pad(_contents(seed, (1, d.kind), head), pad))
        parts["head_length"].append(np.pad(d.draw.head_length, pad))
        parts["head_type"].append(np.pad(np.tile(d.draw.head_type, (len(turns), 1)), pad))
        parts["body_content"].append(_contents(seed, (2, d.kind, d.phase), body))
        parts["body_length"].append(d.draw.body_length)
        parts["input_type"].append(d.draw.input_type)
        parts["session"].append(session + np.repeat(np.arange(len(turns)), turns))
        parts["first"].append(row + d.first)
        parts["keep_from"].append(row + d.draw.user_turn)
        row, session = row + requests, session + len(turns)
    return Conversations(**{field: np.concatenate(arrays) for field, arrays in parts.items()})


def _ended(drawn: list[_Drawn], until: float) -> int:
    """Count the sessions that `max_prompt_tokens` ended at times up to `until`."""
    return sum(len(np.unique(d.first[~d.kept & (d.arrival <= until)])) for d in drawn)


def _draw_all(
    kinds: Mapping[str, Kind],
    phases: list[Phase],
    seconds: list[float],
    rates: list[dict[str, float]],
    seed: int,
    arrivals: str,
    cv: float,
    limit: int | None,
) -> list[_Drawn]:
    drawn, begin = [], 0.0
    for p in range(len(phases)):
        for name, kind in kinds.items():
            k = _KIND_NUMBER[name]
            starts = _starts(_stream(seed, 3, k, p), rates[p][name], begin, seconds[p], arrivals, cv)
            if len(starts):
                draw = kind.draw(_stream(seed, 4, k), _stream(seed, 5, k, p), starts)
                drawn.append(_finish(draw, k, p, limit))
        begin += seconds[p]
    return drawn


def _requests_per_start(name: str, kind: Kind, seed: int, limit: int | None) -> tuple[float, float]:
    """Return the mean requests and sessions that one start of a kind brings."""
    k = _KIND_NUMBER[name]
    sample = _finish(kind.draw(_stream(seed, 4, k), _stream(0, 6, k), np.zeros(_SAMPLE)), k, 0, limit)
    requests = np.count_nonzero(sample.kept) / _SAMPLE
    if requests == 0:
        raise InputError(f"workload.max_prompt_tokens={limit}: no {name} prompt is that short; raise it")
    return requests, len(sample.draw.turns) / _SAMPLE


def generate(
    *,
    name: str,
    requests: int,
    seed: int,
    arrivals: str,
    arrivals_cv: float,
    request_rate: float,
    session_rate: float | None,
    block_size: int,
    generated: str,
    max_prompt_tokens: int | None,
    phases: Mapping[str, Mapping[str, float]],
    **groups: Any,
) -> Trace:
    """Generate a trace.

    Args:
        name: of the workload.
        requests: R; the phases scale with it.
        seed: whole number, not negative; the same options and seed give the same trace.
        arrivals: "poisson", or "gamma" (burstier where `arrivals_cv` is above 1), of session starts.
        arrivals_cv: coefficient of variation of the gaps between starts, for "gamma".
        request_rate: requests a second in the long run.
        session_rate: sessions that start a second, all kinds together, as a mean over the phases; where given it
            replaces `request_rate`.
        block_size: tokens of a block.
        generated: what of the replies' blocks is in the trace: "known", "none" or "unique".
        max_prompt_tokens: a session ends before its first prompt above this.
        phases: by name, in order: `requests` (its share) and the shares of chat, templated and agentic among its
            requests; both are normalised. Sessions go on into the next phase.
        groups: `chat`, `templated`, `agentic`: the options of each kind that a phase has.

    Raises:
        InputError: an option is missing, unknown or impossible.
    """
    total = whole("workload.requests", requests)
    seed = whole("workload.seed", seed, Bounds(0, 2**63 - 1, whole=True))
    size = whole("workload.block_size", block_size, Bounds(1, 2**20, whole=True))
    limit = None if max_prompt_tokens is None else whole("workload.max_prompt_tokens", max_prompt_tokens, COUNT)
    choice("workload.arrivals", arrivals, ARRIVALS)
    choice("workload.generated", generated, GENERATED)
    cv = number("workload.arrivals_cv", arrivals_cv, Bounds(0.05, 100))
    rate = number("workload.request_rate", request_rate, _RATE)
    stages = _read_phases(phases)
    known_keys("workload", groups, KINDS)
    kinds: dict[str, Kind] = {}
    for kind in KINDS:
        options = read(KINDS[kind], f"workload.{kind}", groups[kind]) if groups.get(kind) is not None else None
        if any(p.shares[kind] > 0 for p in stages):
            if options is None:
                raise InputError(f"workload.{kind}: missing, but a phase has {kind} requests")
            kinds[kind] = options

    means = {kind: _requests_per_start(kind, kinds[kind], seed, limit) for kind in kinds}
    if session_rate is not None:
        wanted = number("workload.session_rate", session_rate, _RATE)
        per_request = {k: sessions / each for k, (each, sessions) in means.items()}
        rate = wanted / sum(p.requests * p.shares[k] * per_request[k] for p in stages for k in kinds)
    rates = [{k: rate * p.shares[k] / means[k][0] for k in kinds} for p in stages]
    seconds = [p.requests * total / rate for p in stages]
    for attempt in range(100):
        drawn = _draw_all(kinds, stages, seconds, rates, seed, arrivals, cv, limit)
        arrival = np.sort(np.concatenate([d.arrival[d.kept] for d in drawn])) if drawn else np.empty(0)
        counts = np.diff(np.searchsorted(arrival, np.cumsum([0.0, *seconds])))
        shares_met = True
        # Sessions outlast the phase they began in, so a phase's length is found by trying: the last one lasts until it
        # holds the last request, the others until they hold their share, within 2 % of the trace.
        for p, stage in enumerate(stages[:-1]):
            if attempt < 12 and abs(counts[p] - stage.requests * total) > 0.02 * total:
                seconds[p] *= float(np.clip(stage.requests * total / max(counts[p], 1), 0.7, 1.4))
                shares_met = False
        if counts.sum() < total:
            seconds[-1] = seconds[-1] * 1.25 + 1 / rate
        elif shares_met:
            break
    else:
        raise InputError(
            f"workload.requests={total}: not reached at these rates; raise a phase's share or its gaps' pace"
        )

    talks = _join(drawn, seed)
    when = np.concatenate([d.arrival for d in drawn])
    kept = np.flatnonzero(np.concatenate([d.kept for d in drawn]))
    order = kept[np.argsort(when[kept], kind="stable")][:total]
    prompt = np.concatenate([d.prompt_tokens for d in drawn])[order]
    output = talks.body_length[order, 1] + talks.body_length[order, 2]
    completed = completed_blocks(prompt, output, size)
    references = int((prompt // size + completed).sum())
    if references > _LARGEST or int(prompt.max()) > _LARGEST - int(output.max()):
        raise InputError(
            f"workload.requests={total}: {references:,} block references, more than a trace can hold; "
            "lower it or workload.max_prompt_tokens, or raise workload.block_size"
        )
    raw, token_type = render(talks, order, ragged(prompt // size + completed), size)
    ends = np.cumsum(seconds)[:-1]
    columns = RawRequests(
        arrival=when[order],
        session=talks.session[order],
        turn=(order - talks.first[order]).astype(np.int32),
        prompt_tokens=prompt,
        output_tokens=output,
        flags=np.concatenate([d.draw.flags for d in drawn])[order],
        phase=np.searchsorted(ends, when[order], side="right").astype(np.uint8),
        generated=completed,
        raw=raw,
        token_type=token_type,
    )
    notes = {
        "seed": str(seed),
        "arrivals": arrivals if arrivals == "poisson" else f"gamma, cv {cv:g}",
        "request_rate": f"{rate:g}",
        "session_rate": "from request_rate" if session_rate is None else f"{session_rate:g}",
        "generated": generated,
        "max_prompt_tokens": "none" if limit is None else str(limit),
        "sessions_ended_by_max_prompt_tokens": str(_ended(drawn, float(when[order[-1]]))),
    }
    names = tuple(p.name for p in stages)
    return assemble(columns, name=name, block_size=size, generated=generated, phases=names, notes=notes)
