"""Loaders: what they read, what they refuse and with which words."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads import kv_cache_tester
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.sessions import hint
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace

# --- Mooncake ---------------------------------------------------------------------------------------------------------


def line(timestamp: Any = 0, length: Any = 1100, output: Any = 5, ids: Any = (0, 1, 2)) -> str:
    return json.dumps({"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": list(ids)})


def mooncake(path: Path, text: str | bytes, *overrides: str) -> Trace:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return make("mooncake", f"path='{path}'", *overrides)


def test_mooncake_reads_lines(tmp_path: Path) -> None:
    text = "\n".join([line(1000), line(2500, 1024, ids=(0, 7)), line(3000, 40, ids=(9,))])
    trace = mooncake(tmp_path / "t.jsonl", text)
    assert trace.arrival.tolist() == [0.0, 1.5, 2.0]
    assert trace.block_size == 512
    # Full blocks only: 1100 // 512 = 2, the partial third id is dropped; 1024 // 512 = 2; 40 // 512 = 0.
    assert trace.prompt_start.tolist() == [0, 2, 4, 4]
    assert trace.prompt_blocks.tolist() == [0, 1, 0, 2]
    assert len(trace.generated_blocks) == 0
    assert trace.session.tolist() == [-1, -1, -1]
    assert trace.turn.tolist() == [-1, -1, -1]
    assert set(trace.token_type) == {int(TokenType.UNKNOWN)}
    assert trace.notes["malformed_lines"] == "0"


def test_mooncake_reads_gzip_bom_crlf_blank_lines_and_aliases(tmp_path: Path) -> None:
    plain = mooncake(tmp_path / "t.jsonl", "\n".join([line(0), line(10)]))
    other = '{"timestamp": 10.0, "input_tokens": 1100.0, "output_tokens": 5, "hashes": [0, 1, 2]}'
    text = b"\xef\xbb\xbf\r\n" + (line(0) + "\r\n\r\n   \r\n" + other + "\r\n").encode()
    assert mooncake(tmp_path / "u.jsonl", text).digest == plain.digest
    assert mooncake(tmp_path / "v.jsonl.gz", gzip.compress(text)).digest == plain.digest


def test_one_id_under_two_predecessors_is_two_identities(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t.jsonl", "\n".join([line(0, 1024, ids=(0, 5)), line(1, 1024, ids=(1, 5))]))
    assert trace.prompt_blocks.tolist() == [0, 1, 2, 3]


def test_mooncake_options(tmp_path: Path) -> None:
    text = "\n".join(line(1000 * n, 1100 + 600 * (n == 3), ids=range(4 if n == 3 else 3)) for n in range(50))
    file = tmp_path / "t.jsonl"
    assert mooncake(file, text, "requests=20").num_requests == 20
    limited = mooncake(file, text, "max_prompt_tokens=1200")
    assert limited.num_requests == 49
    assert "1 requests left out" in limited.notes["max_prompt_tokens"]
    drawn = mooncake(file, text, "arrivals=poisson", "session_rate=2")
    assert drawn.arrival[-1] == pytest.approx(25, rel=0.5)
    assert drawn.digest == mooncake(file, text, "arrivals=poisson", "session_rate=2").digest
    assert drawn.digest != mooncake(file, text, "arrivals=poisson", "session_rate=2", "seed=1").digest
    unique = mooncake(file, text, "generated=unique")
    unique.validate()
    # 1100 + 5 - 1 = 1104 tokens complete no further block.
    assert len(unique.generated_blocks) == 0
    long = "\n".join(line(n, 1100, 600) for n in range(3))
    assert len(mooncake(file, long, "generated=unique").generated_blocks) == 3


def test_times_that_fall_are_sorted_stably_and_noted(tmp_path: Path) -> None:
    text = "\n".join([line(5000, ids=(1, 2, 3)), line(0, ids=(4, 5, 6)), line(5000, ids=(7, 8, 9))])
    trace = mooncake(tmp_path / "t.jsonl", text)
    assert trace.arrival.tolist() == [0, 5, 5]
    assert trace.notes["times_that_fall"] == "1 (sorted)"


BAD_LINES = [
    "{",
    "[]",
    "7",
    "nonsense",
    '{"timestamp": 1}',
    line(-1),
    line("0"),
    line(float("nan")),
    line(float("inf")),
    line(length=0),
    line(length=-5),
    line(length=1.5),
    line(length=True),
    line(length=2**40),
    line(output=-1),
    line(output=None),
    line(ids=(0,)),
    line(ids=(0, 1, 2, 3)),
    line(ids=(0, 1, -2)),
    line(ids=(0, 1, 2**70)),
    line(ids=(0, 1, "x")),
    line(ids=(0, 1, 1.5)),
    line(ids=(0, 1, [2])),
    line(ids=(0, 1, None)),
    "[" * 100_000,
    '{"timestamp": ' + "9" * 5000 + "}",
    "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_malformed_line_is_counted_and_named(tmp_path: Path, bad: str) -> None:
    good = [line(n) for n in range(150)]
    trace = mooncake(tmp_path / "t.jsonl", "\n".join([*good[:6], bad, *good[6:]]))
    assert trace.num_requests == 150
    assert trace.notes["malformed_lines"].startswith("1 (line 7; first: line 7: ")


def test_more_than_one_in_a_hundred_is_an_error(tmp_path: Path) -> None:
    text = "\n".join([*(line(n) for n in range(150)), "{", "{"])
    says = r"t\.jsonl: line 151: not JSON .*2 of 152.*expected .*hash_ids.*kvcache-ai"
    with pytest.raises(InputError, match=says) as caught:
        mooncake(tmp_path / "t.jsonl", text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.jsonl", b"", "empty; expected .*; get conversation_trace"),
        ("t.jsonl", b"\n \n", "empty"),
        ("t.jsonl.gz", b"", "empty"),
        ("t.jsonl.gz", line().encode(), "not a gzip file"),
        ("t.jsonl.gz", gzip.compress(line().encode() * 99, mtime=0)[:40], "damaged gzip"),
        ("t.jsonl.gz", gzip.compress(line().encode(), mtime=0)[:-3], "damaged gzip"),
        ("t.jsonl.gz", b"\x1f\x8b" + b"\x00" * 30, "damaged gzip"),
        ("t.jsonl", b"\x00\xff\xfe" * 50, "line 1: not JSON"),
        ("t.csv", b"TIMESTAMP,ContextTokens\n1,2\n", "line 1: not JSON"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        mooncake(tmp_path / name, content)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("path=null", r"workload\.path=None: missing; get conversation_trace"),
        ("path=/no/such/file.jsonl", r"/no/such/file\.jsonl: no such file"),
        ("path=.", "a folder, expected a file"),
        ("block_size=0", r"workload\.block_size=0"),
        ("requests=0", r"workload\.requests=0"),
        ("arrivals=poison", "did you mean 'poisson'"),
        ("arrivals=poisson", r"workload\.session_rate=null"),
        ("generated=known", "does not name the blocks of replies"),
        ("max_prompt_tokens=10", r"workload\.max_prompt_tokens=10: no prompt"),
        ("seed=-3", r"workload\.seed=-3"),
    ],
)
def test_mooncake_refuses_impossible_options(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        mooncake(tmp_path / "t.jsonl", line(), override)


# --- kv-cache-tester --------------------------------------------------------------------------------------------------


def ask(t: float, length: int, ids: list[int], out: int = 70, stop: str = "tool_use", **more: Any) -> dict[str, Any]:
    kinds = {"input_types": ["tool_result"], "output_types": ["text", "tool_use"], "type": "n", "stop": stop}
    return kinds | {"t": t, "in": length, "out": out, "hash_ids": ids} | more


def session(requests: list[dict[str, Any]], tools: int = 128, system: int = 64) -> dict[str, Any]:
    return {"id": "x", "block_size": 64, "tool_tokens": tools, "system_tokens": system, "requests": requests}


TALK = [
    ask(0.0, 256, [1, 2, 3, 4], out=140, input_types=["text"], output_types=["thinking", "tool_use"]),
    ask(7.5, 420, [1, 2, 3, 4, 5, 6, 7]),
    ask(20.0, 640, [*range(1, 11)], stop="end_turn", output_types=["text"]),
]


def folder(path: Path, sessions: list[Any]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for n, content in enumerate(sessions):
        (path / f"trace_{n:04}.json").write_text(json.dumps(content))
    return path


def load(path: Path, *overrides: str) -> Trace:
    return make("kv_cache_tester", f"path='{path}'", *overrides)


def test_kv_cache_tester_reads_a_session(tmp_path: Path) -> None:
    trace = load(folder(tmp_path, [session(TALK)]))
    assert trace.block_size == 64
    assert trace.arrival.tolist() == [0.0, 7.5, 20.0]
    assert trace.session.tolist() == [0, 0, 0]
    assert trace.turn.tolist() == [0, 1, 2]
    assert np.diff(trace.prompt_start).tolist() == [4, 6, 10]
    # (256 + 140 - 1) // 64 - 256 // 64 = 2 blocks, shown by the next turn; the second's next prompt is 640 >= 420 + 70
    # and shows (420 + 69) // 64 - 6 = 1; the last has no next turn.
    assert np.diff(trace.generated_start).tolist() == [2, 1, 0]
    first = trace.prompt_blocks[trace.prompt_start[1] : trace.prompt_start[2]].tolist()
    assert trace.generated_blocks[:2].tolist() == first[4:6]
    assert trace.flags.tolist() == [HAS_TOOLS | ENDED_FOR_TOOL, HAS_TOOLS | ENDED_FOR_TOOL, HAS_TOOLS]
    names = [TokenType(int(trace.token_type[b])).name.lower() for b in range(trace.num_identities)]
    # 128 tokens of tools, 64 of system, 64 of user; a reply of 140, half of it thinking (70); then tool output.
    assert names[:4] == ["tool_definition", "tool_definition", "system", "user"]
    assert names[4:6] == ["reasoning", "response"]
    assert names[-1] == "tool_output"


def test_a_history_that_is_rewritten_shows_no_reply(tmp_path: Path) -> None:
    compacted = [TALK[0], ask(7.5, 420, [1, 2, 3, 90, 91, 92, 93]), ask(9.0, 440, [1, 2, 3, 90, 91, 92, 94])]
    trace = load(folder(tmp_path, [session(compacted)]))
    # The second does not extend the first; the third extends the second but is shorter than its prompt and reply.
    assert np.diff(trace.generated_start).tolist() == [0, 0, 0]


def test_sub_agents_are_sessions_with_their_parents_ids(tmp_path: Path) -> None:
    child = {
        "type": "subagent",
        "t": 10.0,
        "tool_tokens": 64,
        "system_tokens": 0,
        "requests": [ask(0.0, 128, [50, 51]), ask(2.0, 256, [50, 51, 52, 4])],
    }
    trace = load(folder(tmp_path, [session([TALK[0], child, *TALK[1:]])]))
    assert trace.arrival.tolist() == [0.0, 7.5, 10.0, 12.0, 20.0]
    assert trace.session.tolist() == [0, 0, 1, 1, 0]
    assert trace.turn.tolist() == [0, 1, 0, 1, 2]
    assert "2 sessions with sub-agents" in trace.notes["sessions"]


def test_equal_tools_and_system_are_shared_as_the_option_says(tmp_path: Path) -> None:
    path = folder(tmp_path, [session(TALK), session(TALK), session(TALK, tools=192, system=0)])
    shared, apart = load(path), load(path, "share=0")
    # 16 blocks of a session: 7 + ids 8 … 10 = 10 different ones; two sessions share the first three.
    assert apart.num_identities == 30
    assert shared.num_identities == 27
    assert shared.notes["share"].startswith("1 of")
    # Blocks after the shared ones are nobody else's, although the local ids are the same.
    assert len(np.unique(shared.prompt_blocks)) == 27


def test_kv_cache_tester_layouts_and_gzip(tmp_path: Path) -> None:
    plain = load(folder(tmp_path / "a" / "traces", [session(TALK)]))
    assert load(tmp_path / "a").digest == plain.digest
    assert load(tmp_path / "a" / "traces" / "trace_0000.json").digest == plain.digest
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(session(TALK)).encode()))
    assert load(tmp_path / "b").digest == plain.digest


def test_kv_cache_tester_options(tmp_path: Path) -> None:
    path = folder(tmp_path, [session(TALK) for _ in range(40)])
    trace = load(path, "session_rate=0.5")
    starts = trace.arrival[trace.turn == 0]
    assert len(starts) / starts[-1] == pytest.approx(0.5, rel=0.4)
    gaps = hint(trace).gap_seconds
    assert set(np.round(gaps[trace.turn == 1], 4)) == {7.5}
    assert load(path, "seed=1").digest != load(path).digest
    assert load(path, "seed=1").digest == load(path, "seed=1").digest
    assert load(path, "requests=50").num_requests == 50
    assert load(path, "sessions=7").num_requests == 21
    assert "7 of 40 files" in load(path, "sessions=7").notes["sessions"]
    short = load(path, "max_prompt_tokens=500")
    assert short.num_requests == 80
    assert "40 sessions ended" in short.notes["max_prompt_tokens"]
    assert np.count_nonzero(np.diff(load(path, "generated=none").generated_start)) == 0
    unique = load(path, "generated=unique")
    assert len(np.unique(unique.generated_blocks)) == len(unique.generated_blocks) > 0
    assert not set(unique.generated_blocks) & set(unique.prompt_blocks)


def test_a_malformed_request_or_file_is_counted_and_named(tmp_path: Path) -> None:
    bad = session([*TALK, ask(30.0, 640, [1, 2]), ask(40.0, -1, [])])
    path = folder(tmp_path, [session(TALK) for _ in range(150)] + [bad])
    (path / "trace_0151.json").write_text("{")
    trace = load(path)
    assert trace.num_requests == 453
    assert trace.notes["malformed_files"].startswith("1 (trace_0151.json;")
    assert trace.notes["malformed_requests"].startswith("2 (trace_0150.json request 3, trace_0150.json request 4;")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "no field block_size"),
        (json.dumps(session([])), "empty"),
        (json.dumps(session(TALK) | {"block_size": 0}), "block_size is 0"),
        (json.dumps(session(TALK) | {"requests": 3}), "no list of requests"),
        (json.dumps(session(TALK) | {"tool_tokens": -1}), "tool_tokens is -1"),
        (json.dumps(session(["x", None])), "request 0: not an object"),
        (json.dumps(session([ask(-1.0, 64, [1])])), "t is -1"),
        (json.dumps(session([ask(0.0, 64, [2**40])])), "hash_ids holds something other"),
        (json.dumps(session([ask(0.0, 64, [1], input_types=[3])])), "input_types"),
    ],
)
def test_bad_session_files_are_one_clear_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "callanjfox/kv-cache-tester" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("path=null", r"workload\.path=None: missing; get the traces folder"),
        ("path=/no/such", "no such file or folder"),
        ("arrivals=recorded", "does not say when sessions started; choose poisson"),
        ("session_rate=0", r"workload\.session_rate=0"),
        ("session_rate=null", r"workload\.session_rate=None"),
        ("share=1.5", r"workload\.share=1\.5: must be a number from 0 to 1"),
        ("share=.nan", r"workload\.share=nan"),
        ("sessions=0", r"workload\.sessions=0"),
        ("generated=some", r"workload\.generated=some"),
        ("max_prompt_tokens=10", r"workload\.max_prompt_tokens=10: no prompt"),
    ],
)
def test_kv_cache_tester_refuses_impossible_options(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load(folder(tmp_path, [session(TALK)]), override)


def test_an_empty_folder_and_mixed_block_sizes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \.json or \.json\.gz file"):
        load(tmp_path)
    with pytest.raises(InputError, match="block_size differs"):
        load(folder(tmp_path, [session(TALK), session([ask(0.0, 32, [1])]) | {"block_size": 32}]))


# --- What can't be read ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32" or not hasattr(os, "geteuid"), reason="needs file modes")
def test_an_unreadable_file(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    file = tmp_path / "t.jsonl"
    file.write_text(line())
    file.chmod(0)
    with pytest.raises(InputError, match="not readable"):
        make("mooncake", f"path='{file}'")


@pytest.mark.parametrize("name", ["kv_cache_tester", "tau_bench"])
def test_a_folder_that_may_not_be_listed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "inner", [session(TALK)])
    options = ("arrivals=poisson", "session_rate=1") if name == "tau_bench" else ()
    scan = os.scandir

    def refuse(place: Any) -> Any:
        if os.fspath(place).endswith("inner"):
            raise PermissionError(13, "Permission denied", os.fspath(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    for at in (tmp_path / "inner", tmp_path) if name == "tau_bench" else (tmp_path / "inner",):
        with pytest.raises(InputError, match=r"inner: not readable \(Permission denied\)"):
            make(name, f"path='{at}'", *options)


def test_what_stands_where_a_folder_of_sessions_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not JSON"):
        load(Path(os.devnull))
    (tmp_path / "traces").write_text("")  # a file of the name that the folder of sessions has
    with pytest.raises(InputError, match=r"no \.json or"):
        load(tmp_path)
    (tmp_path / "a.json").mkdir()
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "b.json").symlink_to("b.json")
    with pytest.raises(InputError, match=r"no \.json or"):
        load(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "b.json")
    folder(tmp_path, [session(TALK)])
    assert load(tmp_path).num_requests == len(TALK)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(place)
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    named = Path(os.fsdecode(place))
    (named / os.fsdecode(b"\xfe.json")).write_text(json.dumps(session(TALK)))
    trace = kv_cache_tester.load(
        name="kv", path=str(named), requests=None, sessions=None, arrivals="poisson", session_rate=1.0, seed=0,
        share=1.0, generated="known", max_prompt_tokens=None,
    )  # fmt: skip
    assert trace.num_requests == len(TALK)
    trace.save(tmp_path / "trace.npz")
    assert Trace.load(tmp_path / "trace.npz").notes == trace.notes


def test_ids_far_apart_take_no_more_memory(tmp_path: Path) -> None:
    far = [ask(r["t"], r["in"], [2**26 - 20 + i for i in r["hash_ids"]]) for r in TALK]
    near = [ask(r["t"], r["in"], r["hash_ids"]) for r in TALK]
    (tmp_path / "near").mkdir()
    found = load(folder(tmp_path / "near", [session(near)]))
    tracemalloc.start()
    trace = load(folder(tmp_path / "far", [session(far)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6  # tables as long as the largest id take 670 MB
    assert trace.prompt_blocks.tolist() == found.prompt_blocks.tolist()
    assert trace.token_type.tolist() == found.token_type.tolist()
