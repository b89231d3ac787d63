"""Whatever a file holds, a loader gives a valid trace or one clear line.

A few hundred cases here; SAECACHE_FUZZ_CASES=100000 runs as many.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from saecache_rl.errors import InputError
from saecache_rl.workloads import kv_cache_tester, records
from saecache_rl.workloads.trace import Trace
from tests.workloads.test_loaders import TALK, line, make, session

CASES = int(os.environ.get("SAECACHE_FUZZ_CASES", "300"))

SCRAPS = (b"-", b"9", b"e9", b"NaN", b"null", b'"', b"\n", b"[", b"}", b"\x00")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**26, 2**26 + 1, 2**31, 2**63, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), 1e16,
    "", "tool_use", "subagent", "\ud800", [], [[]], {}, [None], ["a"],
)  # fmt: skip
WITH_SUB_AGENT = session(
    [*TALK, {"type": "subagent", "t": 3.0, "tool_tokens": 64, "system_tokens": 64, "requests": TALK[:2]}]
)


def mutated(content: bytes, source: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(source.randint(1, 8)):
        kind, at = source.randrange(4), source.randrange(len(changed) + 1)
        if kind == 0 and at < len(changed):
            changed[at] = source.randrange(256)
        elif kind == 1:
            changed[at:at] = source.choice(SCRAPS)
        elif kind == 2:
            del changed[at : at + source.randint(1, 6)]
        else:
            del changed[at : at + 1 if source.random() < 0.9 else len(changed)]
    return bytes(changed)


def holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each (object or list, key) of a JSON value."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from holders(inner)


def changed(record: dict[str, Any], source: random.Random) -> dict[str, Any]:
    """The record with a few of its values replaced, dropped, or put elsewhere."""
    record = json.loads(json.dumps(record))
    for _ in range(source.choice((1, 1, 2, 4))):
        places = list(holders(record))
        if not places:
            break
        (holder, key), (other, from_key) = source.choice(places), source.choice(places)
        kind = source.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            holder[key] = json.loads(json.dumps(other[from_key]))
        else:
            holder[key] = copy.deepcopy(source.choice(VALUES))
    return record


@pytest.mark.parametrize("kind", ["mooncake", "kv_cache_tester"])
def test_any_bytes(tmp_path: Path, kind: str) -> None:
    texts = {"mooncake": "\n".join(line(n) for n in range(300)), "kv_cache_tester": json.dumps(session(TALK))}
    plain = texts[kind].encode()
    source = random.Random(7)
    outcomes = {True: 0, False: 0}
    for case in range(CASES):
        packed = case % 5 == 0
        content = mutated(gzip.compress(plain, mtime=0) if packed else plain, source)
        file = tmp_path / f"case.json{'.gz' if packed else ''}"
        file.write_bytes(content)
        problem = ""
        try:
            make(kind, f"path='{file}'").validate()
        except InputError as error:
            problem = str(error)
        outcomes[not problem] += 1
        assert "\n" not in problem, content
    assert min(outcomes.values()) > 5


def load(place: Path, source: random.Random) -> Trace:
    return kv_cache_tester.load(
        name="kv",
        path=str(place),
        requests=source.choice((None, 1, 3)),
        sessions=source.choice((None, 1)),
        arrivals="poisson",
        session_rate=source.choice((1e-9, 0.02, 1e9)),
        seed=source.randrange(5),
        share=source.choice((0.0, 0.5, 1.0)),
        generated=source.choice(("known", "none", "unique")),
        max_prompt_tokens=source.choice((None, None, 500)),
    )


def test_any_values_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(8)
    outcomes = {True: 0, False: 0}
    for case in range(CASES):
        # Where malformed records are let pass, the others have to come through whole.
        monkeypatch.setattr(records, "TOLERATED", source.choice((0.01, 1.0)))
        files = [changed(source.choice((session(TALK), WITH_SUB_AGENT)), source) for _ in range(source.choice((1, 2)))]
        for n in (0, 1):
            (tmp_path / f"{n}.json").unlink(missing_ok=True)
        for n, content in enumerate(files):
            (tmp_path / f"{n}.json").write_text(json.dumps(content))
        problem = ""
        try:
            load(tmp_path, source).validate()
        except InputError as error:
            problem = str(error)
        outcomes[not problem] += 1
        assert "\n" not in problem, (case, files)
    assert min(outcomes.values()) > CASES // 10
