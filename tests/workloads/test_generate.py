"""Generated workloads: valid, reproducible, as calibrated, and every number an option that moves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.catalogue import make, names, options
from saecache_rl.workloads.sessions import hint
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace

GENERATED = (
    "agentic",
    "agentic_shift",
    "balanced",
    "chat",
    "multi_turn_dominant",
    "single_turn_dominant",
    "templated",
    "tool_use",
)


def log_normal(values: np.ndarray) -> tuple[float, float]:
    logs = np.log(values)
    return float(logs.mean()), float(logs.std())


def test_all_are_listed() -> None:
    assert set(GENERATED) | {"mooncake", "kv_cache_tester"} <= set(names())


@pytest.mark.parametrize("name", GENERATED)
def test_valid_and_as_large_as_asked(name: str) -> None:
    trace = make(name, "requests=2500")
    trace.validate()
    assert trace.num_requests == 2500
    assert trace.block_size == 16
    assert trace.name == name
    assert trace.notes["generated"] == "known"
    assert trace.prompt_tokens.max() <= 24576
    # A session's turns come in order of time.
    assert np.nanmin(hint(trace).gap_seconds, initial=0) >= 0
    assert np.array_equal(hint(trace).turn, trace.turn)


def test_same_seed_same_digest_and_another_seed_another() -> None:
    first, again, other = make("balanced", "requests=800"), make("balanced", "requests=800"), None
    other = make("balanced", "requests=800", "seed=1")
    assert first.digest == again.digest
    assert first.digest != other.digest


def test_same_digest_whatever_the_hash_seed_and_folder(tmp_path: Path) -> None:
    code = "from saecache_rl.workloads.catalogue import make; print(make('balanced', 'requests=300').digest)"
    root = str(Path(__file__).parents[2])
    digests = {make("balanced", "requests=300").digest}
    for seed in ("0", "1"):
        environment = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=root)
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        digests.add(ran.stdout.strip())
    assert len(digests) == 1


def test_chat_is_as_calibrated() -> None:
    trace = make("chat", "requests=10000", "max_prompt_tokens=null")
    sessions = hint(trace)
    gaps = sessions.gap_seconds[sessions.turn > 0]
    # The trace ends before the longest gaps do, so it shows a little less than LN(4.15, 0.97).
    mu, sigma = log_normal(gaps)
    assert mu == pytest.approx(4.15, abs=0.08)
    assert sigma == pytest.approx(0.97, abs=0.05)
    assert np.median(trace.output_tokens) == pytest.approx(323, rel=0.05)
    # Sessions that began in the first half have mostly ended: 2.52 turns each, sampling error of some 2 %.
    early = np.unique(trace.session[: len(trace.session) // 2])
    turns = np.bincount(trace.session)[early]
    assert turns.mean() == pytest.approx(2.52, rel=0.08)
    assert (turns > 10).mean() == pytest.approx(0.037, abs=0.012)


def test_templated_is_as_calibrated() -> None:
    trace = make("templated", "requests=10000")
    assert np.array_equal(trace.turn, np.zeros(10000))
    # 900 of template and 300 of its own in the median; Azure's code trace has 1,469 prompt tokens in all. The templates
    # themselves are 150 draws, so the median depends on the popular ones.
    assert 1000 < np.median(trace.prompt_tokens) < 2100
    assert np.median(trace.output_tokens) == pytest.approx(16, abs=1.5)
    # Bursts: far from exponential, whose coefficient of variation is 1.
    gaps = np.diff(trace.arrival)
    assert gaps.std() / gaps.mean() > 1.5
    # The skew of arXiv 2506.02634: 10 % of the blocks that are ever reused or not give about 77 % of all reuses.
    uses = np.bincount(trace.prompt_blocks, minlength=trace.num_identities) - 1
    uses = np.sort(uses[uses >= 0])[::-1]
    assert uses[: len(uses) // 10].sum() / uses.sum() > 0.7


def test_agentic_is_as_calibrated() -> None:
    trace = make("agentic", "requests=10000")
    sessions = hint(trace)
    assert (trace.flags & HAS_TOOLS).all()
    before: dict[int, int] = {}
    after_tool = []
    for r, session in enumerate(trace.session.tolist()):
        if session in before and trace.flags[before[session]] & ENDED_FOR_TOOL:
            after_tool.append(sessions.gap_seconds[r])
        before[session] = r
    mu, sigma = log_normal(np.array(after_tool))
    assert mu == pytest.approx(1.81, abs=0.05)
    assert sigma == pytest.approx(1.09, abs=0.05)
    assert np.median(trace.output_tokens) == pytest.approx(260, rel=0.05)
    # Geometric with mean 5.3: all but one request in 5.3 end for a tool.
    assert (trace.flags & ENDED_FOR_TOOL > 0).mean() == pytest.approx(1 - 1 / 5.3, abs=0.02)
    held = set(np.unique(trace.token_type).tolist())
    assert held == {int(t) for t in TokenType if t is not TokenType.UNKNOWN}


def test_agentic_shift_shifts() -> None:
    trace = make("agentic_shift")
    assert trace.num_requests >= 20_000
    assert trace.phases == ("chat_and_templates", "agents", "mix")
    assert 3e6 < len(trace.prompt_blocks) + len(trace.generated_blocks) < 9e6
    assert (np.diff(trace.phase.astype(int)) >= 0).all()
    shares = [(trace.flags[trace.phase == p] & HAS_TOOLS > 0).mean() for p in range(3)]
    assert shares[0] == 0
    assert shares[1] > 0.6
    assert 0.2 < shares[2] < 0.6


def test_requests_scale_the_phases() -> None:
    small, large = make("agentic_shift", "requests=4000"), make("agentic_shift", "requests=8000")
    for trace in (small, large):
        counts = np.bincount(trace.phase, minlength=3) / trace.num_requests
        assert counts == pytest.approx([0.35, 0.35, 0.30], abs=0.025)


def test_session_rate_replaces_request_rate() -> None:
    trace = make("chat", "requests=4000", "session_rate=3.0")
    starts = trace.arrival[trace.turn == 0]
    assert len(starts) / starts[-1] == pytest.approx(3.0, rel=0.08)


def test_gamma_arrivals_are_burstier() -> None:
    gaps = [np.diff(make("chat", "requests=4000", f"arrivals={a}").arrival[:2000]) for a in ("poisson", "gamma")]
    variation = [g.std() / g.mean() for g in gaps]
    assert variation[1] > 1.2 * variation[0]


def test_generated_none_and_unique() -> None:
    known = make("chat", "requests=500")
    none, unique = make("chat", "requests=500", "generated=none"), make("chat", "requests=500", "generated=unique")
    none.validate()
    unique.validate()
    assert len(none.generated_blocks) == 0
    assert np.array_equal(np.diff(unique.generated_start), np.diff(known.generated_start))
    assert not set(unique.generated_blocks) & set(unique.prompt_blocks)
    assert len(np.unique(unique.generated_blocks)) == len(unique.generated_blocks)
    # The prompts are the same in all three; only what replies leave differs.
    assert np.array_equal(np.diff(none.prompt_start), np.diff(known.prompt_start))
    assert len(np.unique(none.prompt_blocks)) == len(np.unique(unique.prompt_blocks))


def test_next_prompt_holds_the_reply() -> None:
    trace = make("chat", "requests=1500")
    last: dict[int, int] = {}
    checked = 0
    for r, session in enumerate(trace.session.tolist()):
        if session in last:
            q = last[session]
            left = np.concatenate(
                (
                    trace.prompt_blocks[trace.prompt_start[q] : trace.prompt_start[q + 1]],
                    trace.generated_blocks[trace.generated_start[q] : trace.generated_start[q + 1]],
                )
            )
            here = trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]]
            assert np.array_equal(here[: len(left)], left)
            checked += 1
        last[session] = r
    assert checked > 500


def test_types_and_sizes_follow_the_segments() -> None:
    # One session of fixed lengths in blocks of 16: system 24, user 20, reply 30, and so on.
    trace = make(
        "chat",
        "requests=300",
        "chat.system_prompt_share=1",
        "chat.system_prompt_tokens_median=24",
        "chat.system_prompt_tokens_sigma=0",
        "chat.user_tokens_median=20",
        "chat.user_tokens_sigma=0",
        "chat.response_tokens_median=30",
        "chat.response_tokens_sigma=0",
    )
    assert set(trace.prompt_tokens[trace.turn == 0]) == {44}
    assert set(trace.prompt_tokens[trace.turn == 1]) == {94}
    first = int(np.flatnonzero(trace.turn == 1)[0])
    blocks = trace.prompt_blocks[trace.prompt_start[first] : trace.prompt_start[first + 1]]
    # Tokens 16 … 31 are 8 system and 8 user: a tie, so the one that comes first; 32 … 47: 12 user, 4 response.
    kinds = [TokenType.SYSTEM, TokenType.SYSTEM, TokenType.USER, TokenType.RESPONSE, TokenType.RESPONSE]
    assert trace.token_type[blocks].tolist() == [int(kind) for kind in kinds]


def test_max_prompt_tokens_ends_sessions() -> None:
    trace = make("agentic", "requests=2000", "max_prompt_tokens=8000")
    assert trace.prompt_tokens.max() <= 8000
    assert int(trace.notes["sessions_ended_by_max_prompt_tokens"]) > 0
    for session in range(50):
        assert trace.turn[trace.session == session].tolist() == list(range(np.count_nonzero(trace.session == session)))


def _numbers(node: Any, path: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key in node:
        value, place = node[key], f"{path}.{key}" if path else str(key)
        if hasattr(value, "keys"):
            found += _numbers(value, place)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((place, value))
    return found


def test_every_number_moves_by_a_fifth() -> None:
    base = make("agentic_shift", "requests=300").digest
    moved = 0
    for place, value in _numbers(options("agentic_shift")):
        if place in ("requests", "seed") or value == 0 or place.endswith("reasoning_kept"):
            continue
        for factor in (0.8, 1.2):
            new: float = value * factor
            if isinstance(value, int) and ("zipf" not in place):
                new = round(new) if value > 2 else new
            if place.endswith("_share") or place.endswith("probability"):
                new = min(new, 1.0)
            trace = make("agentic_shift", "requests=300", f"{place}={new}")
            trace.validate()
            moved += trace.digest != base
    assert moved > 80


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("requests=0", r"workload\.requests=0: must be a whole number at least 1"),
        ("requests=2.5", r"workload\.requests=2\.5"),
        ("requests=many", r"workload\.requests=many"),
        ("requests=true", r"workload\.requests=True"),
        ("requests=null", r"workload\.requests=None"),
        ("seed=-1", r"workload\.seed=-1"),
        ("block_size=0", r"workload\.block_size=0"),
        ("block_size=-16", r"workload\.block_size=-16"),
        ("arrivals=recorded", r"workload\.arrivals=recorded: unknown; choose poisson or gamma"),
        ("generated=knwon", r"did you mean 'known'"),
        ("request_rate=-1", r"workload\.request_rate=-1"),
        ("request_rate=.inf", r"workload\.request_rate=inf"),
        ("session_rate=0", r"workload\.session_rate=0"),
        ("max_prompt_tokens=0", r"workload\.max_prompt_tokens=0"),
        ("max_prompt_tokens=3", r"max_prompt_tokens=3: no .* prompt is that short"),
        ("chat.gap_mu=.nan", r"workload\.chat\.gap_mu=nan"),
        ("chat.gap_sigma=-1", r"workload\.chat\.gap_sigma=-1"),
        ("chat.multi_turn_share=1.5", r"from 0 to 1"),
        ("agentic.applications=0.5", r"workload\.agentic\.applications=0\.5"),
        ("phases.agents.agentic=-1", r"workload\.phases\.agents\.agentic=-1"),
        ("phases.agents.requests=0", r"workload\.phases\.agents\.requests=0"),
        ("chat.gap_mean=3", r"workload\.chat\.gap_mean"),
        ("request_rat=3", r"did you mean 'request_rate'"),
        ("phases=null", r"workload\.phases=None"),
    ],
)
def test_impossible_options_are_refused_by_name(override: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        make("agentic_shift", *([] if override.startswith("requests") else ["requests=200"]), override)
    assert "\n" not in str(caught.value)


def test_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'agentic_shift'"):
        make("agentic_shfit")


def test_hydra_composes_what_the_catalogue_makes() -> None:
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    with initialize_config_module("saecache_rl.conf", version_base="1.3"):
        config = compose(overrides=["+workload=balanced", "workload.requests=300", "workload.chat.gap_mu=4"])
    trace = instantiate(config.workload)
    assert isinstance(trace, Trace)
    assert trace.digest == make("balanced", "requests=300", "chat.gap_mu=4").digest
