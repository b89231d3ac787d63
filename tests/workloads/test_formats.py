"""Every text and table format: what a small file of it becomes, and that prompts of a session extend each other."""

from __future__ import annotations

import gzip
import json
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.catalogue import make, options
from saecache_rl.workloads.sessions import hint, lineage
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace
from tests.workloads.naive import hit_blocks
from tests.workloads.samples import AGENT, ASK, CHAT, MORE, SAMPLES, TELL, TOOL, lines, load, said

TEXTS = [n for n in SAMPLES if n not in ("aiperf", "azure", "burstgpt", "bailian", "lmcache_agent", "mooncake")]
EXTENDING = [n for n in TEXTS if SAMPLES[n].sessions == 1] + ["aiperf", "burstgpt"]


def prompt(trace: Trace, request: int) -> list[int]:
    return trace.prompt_blocks[trace.prompt_start[request] : trace.prompt_start[request + 1]].tolist()


def reply(trace: Trace, request: int) -> list[int]:
    return trace.generated_blocks[trace.generated_start[request] : trace.generated_start[request + 1]].tolist()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_small_file_loads(tmp_path: Path, name: str) -> None:
    trace = load(name, tmp_path)
    sample = SAMPLES[name]
    assert trace.num_requests == sample.requests
    assert len(set(trace.session[trace.session >= 0].tolist())) == sample.sessions
    assert trace.name == name
    assert "arrivals" in trace.notes
    assert trace.notes.get("malformed_records", trace.notes.get("malformed_lines")) == "0"


@pytest.mark.parametrize("name", SAMPLES)
def test_gzip_bom_crlf_and_blank_lines_change_nothing(tmp_path: Path, name: str) -> None:
    plain = load(name, tmp_path)
    text = SAMPLES[name].content.replace("\r\n", "\n").replace("\n", "\r\n\r\n")
    packed = gzip.compress(b"\xef\xbb\xbf" + text.encode())
    assert load(name, tmp_path, text=packed, file=SAMPLES[name].file + ".gz").digest == plain.digest


@pytest.mark.parametrize("name", EXTENDING)
def test_a_prompt_and_its_reply_are_a_prefix_of_the_next_prompt(tmp_path: Path, name: str) -> None:
    trace = load(name, tmp_path)
    whole = prompt(trace, 0) + reply(trace, 0)
    assert prompt(trace, 1)[: len(whole)] == whole
    assert len(prompt(trace, 1)) > len(prompt(trace, 0)) > 0
    assert trace.turn.tolist() == [0, 1]
    assert lineage(trace).session.tolist() == [0, 0]


@pytest.mark.parametrize("template", ["chatml", "llama3", "mistral", "deepseek"])
@pytest.mark.parametrize("name", [n for n in TEXTS if SAMPLES[n].sessions == 1])
def test_every_template_keeps_prompts_extending(tmp_path: Path, name: str, template: str) -> None:
    trace = load(name, tmp_path, f"template={template}", "block_size=1", "reasoning=kept")
    whole = prompt(trace, 0) + reply(trace, 0)
    assert len(whole) == trace.prompt_tokens[0] + trace.output_tokens[0] - 1
    assert prompt(trace, 1)[: len(whole)] == whole


def test_labels_and_flags_of_an_agent(tmp_path: Path) -> None:
    trace = load("openai_messages", tmp_path, "block_size=1")
    assert trace.flags.tolist() == [HAS_TOOLS | ENDED_FOR_TOOL, HAS_TOOLS]
    kinds = [TokenType(int(k)) for k in trace.token_type[prompt(trace, 1) + reply(trace, 1)]]
    order = [k for n, k in enumerate(kinds) if n == 0 or kinds[n - 1] != k]
    assert order == [
        TokenType.SYSTEM,
        TokenType.TOOL_DEFINITION,
        TokenType.USER,
        TokenType.RESPONSE,
        TokenType.USER,  # ChatML puts a tool's output into a turn of the user
        TokenType.TOOL_OUTPUT,
        TokenType.USER,
        TokenType.RESPONSE,
    ]
    assert trace.arrival.tolist() == [0.0, 9.0]
    assert trace.notes["time_unit"].startswith("seconds (known by the size of the times")
    assert trace.notes["turns"].startswith("cumulative (seen: 1 of 1")


def test_reasoning_of_earlier_turns_is_lost_where_the_template_drops_it(tmp_path: Path) -> None:
    thinking = [CHAT[0], {**CHAT[1], "reasoning_content": MORE}, *CHAT[2:]]
    text = lines({"conversation_id": "x", "conversation": thinking})
    dropped = load("lmsys", tmp_path, text=text)
    kept = load("lmsys", tmp_path, "reasoning=kept", text=text)
    assert dropped.prompt_tokens[1] < kept.prompt_tokens[1]
    assert dropped.output_tokens[0] == kept.output_tokens[0]
    lost = int(dropped.notes["reasoning"].split("(")[1].split()[0])
    # What the next prompt lacks is what is lost, and the two line feeds after it.
    assert kept.prompt_tokens[1] - dropped.prompt_tokens[1] == lost + 1
    assert "(0 tokens lost)" in kept.notes["reasoning"]
    # The reply's blocks are in the cache, but nobody asks for them.
    whole = prompt(dropped, 0) + reply(dropped, 0)
    assert prompt(dropped, 1)[: len(whole)] != whole
    # Within a tool loop nobody has spoken since, so that reasoning stays.
    loop = [CHAT[0], {**AGENT[2], "reasoning_content": MORE}, AGENT[3], AGENT[4]]
    trace = load("lmsys", tmp_path, text=lines({"conversation_id": "x", "conversation": loop}))
    whole = prompt(trace, 0) + reply(trace, 0)
    assert prompt(trace, 1)[: len(whole)] == whole
    assert int(TokenType.REASONING) in trace.token_type


def test_equal_texts_share_blocks_whoever_asks(tmp_path: Path) -> None:
    other = [*AGENT[:1], {"role": "user", "content": MORE}, {"role": "assistant", "content": TELL}]
    text = lines(*({"conversation_id": n, "conversation": c} for n, c in enumerate([AGENT, other])))
    trace = load("lmsys", tmp_path, "block_size=4", text=text)
    firsts = [prompt(trace, int(r))[:4] for r in np.flatnonzero(trace.turn == 0)]
    assert firsts[0] == firsts[1]
    assert hit_blocks(trace) > 0


# --- What each format has of its own ---


def test_sharegpt_joins_the_pieces_of_a_chat(tmp_path: Path) -> None:
    def piece(name: str, *texts: str, first: int = 0) -> dict[str, object]:
        names = ("human", "gpt") if first == 0 else ("gpt", "human")
        return {"id": name, "conversations": said(*texts, names=names, role="from", content="value")}

    cut = [piece("a_1", MORE, TELL), piece("b_0", ASK, TELL), piece("a_0", ASK, TELL)]
    trace = load("sharegpt", tmp_path, text=json.dumps(cut))
    assert sorted(np.bincount(trace.session).tolist()) == [1, 2]
    assert trace.notes["pieces_joined"] == "1"
    apart = load("sharegpt", tmp_path, "join_pieces=false", text=json.dumps(cut))
    assert np.bincount(apart.session).tolist() == [1, 1, 1]


def test_arena_battles_are_two_sessions_that_start_together(tmp_path: Path) -> None:
    trace = load("chatbot_arena", tmp_path)
    assert trace.arrival.tolist() == [0.0, 0.0]
    assert trace.session.tolist() == [0, 1]


def test_openassistant_asks_each_reply_of_a_tree_once(tmp_path: Path) -> None:
    trace = load("openassistant", tmp_path)
    assert prompt(trace, 0) == prompt(trace, 1)
    assert trace.turn.tolist() == [0, 0]


def test_openai_lines_that_hold_only_what_is_new_are_put_together(tmp_path: Path) -> None:
    def line(at: int, text: str) -> dict[str, object]:
        return {"timestamp": at, "session_id": "s", "messages": [{"role": "user", "content": text}], "response": TELL}

    text = lines(line(1_700_000_000_000, ASK), line(1_700_000_060_000, MORE))
    with pytest.raises(InputError, match=r"workload\.turns=cumulative.*workload\.turns=incremental"):
        load("openai_messages", tmp_path, text=text)
    trace = load("openai_messages", tmp_path, "turns=incremental", text=text)
    whole = prompt(trace, 0) + reply(trace, 0)
    assert prompt(trace, 1)[: len(whole)] == whole
    assert trace.arrival.tolist() == [0.0, 60.0]  # milliseconds, by the size of the times
    assert "milliseconds" in trace.notes["time_unit"]


def test_openai_lines_without_sessions_or_replies(tmp_path: Path) -> None:
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 33}}
    text = lines({"request": {"messages": CHAT[:1]}, "response": usage, "timestamp": "2024-05-01T00:00:00Z"})
    trace = load("openai_messages", tmp_path, text=text)
    assert trace.session.tolist() == trace.turn.tolist() == [-1]
    assert trace.output_tokens.tolist() == [33]
    assert reply(trace, 0) == []
    with pytest.raises(InputError, match="names no sessions"):
        hint(trace)
    # As a file for fine-tuning has it, the last message is the reply.
    tuned = load("openai_messages", tmp_path, text=lines({"messages": CHAT[:2], "timestamp": 1_700_000_000}))
    assert len(reply(tuned, 0)) > 0


def test_tau_bench_reads_the_tools_from_source(tmp_path: Path) -> None:
    folder = tmp_path / "tau_bench" / "envs" / "airline" / "tools"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "calculate.py").write_text(f"class C:\n    @staticmethod\n    def get_info():\n        return {TOOL!r}\n")
    with tarfile.open(tmp_path / "tau.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "tau_bench", "tau_bench")
    without = load("tau_bench", tmp_path)
    for tools in (tmp_path / "tau.tar.xz", tmp_path):
        trace = load("tau_bench", tmp_path, f"tools='{tools}'")
        assert int(TokenType.TOOL_DEFINITION) in trace.token_type
        assert trace.prompt_tokens[0] > without.prompt_tokens[0]
    (folder / "calculate.py").write_text("class C:\n    def get_info(self):\n        return open('x')\n")
    with pytest.raises(InputError, match=r"calculate\.py: its tool definition can't be read"):
        load("tau_bench", tmp_path, f"tools='{tmp_path}'")
    with pytest.raises(InputError, match="no file in it that is wanted"):
        load("tau_bench", tmp_path, f"tools='{tmp_path}'", "domain=retail")


def test_bfcl_reads_functions_and_expected_calls_beside_the_tasks(tmp_path: Path) -> None:
    bare = load("bfcl", tmp_path)
    assert "none found" in bare.notes["functions"]
    for folder, name, record in (
        ("multi_turn_func_doc", "math_api.json", {"name": "add", "description": TELL}),
        ("multi_turn_func_doc", "posting_api.json", {"name": "post", "description": TELL}),
        ("possible_answer", SAMPLES["bfcl"].file, {"id": "multi_turn_base_0", "ground_truth": [["add(1, 2)"], []]}),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(lines(record))
    trace = load("bfcl", tmp_path)
    assert int(TokenType.TOOL_DEFINITION) in trace.token_type
    assert trace.flags.tolist() == [HAS_TOOLS | ENDED_FOR_TOOL, HAS_TOOLS]
    assert make("bfcl", f"path='{tmp_path}'", *SAMPLES["bfcl"].overrides).digest == trace.digest


def test_aiperf_turns_hold_replies_and_blocks_that_lie_across(tmp_path: Path) -> None:
    trace = load("aiperf", tmp_path)
    # 1100 new; then 1100 + 600 + 500.
    assert trace.prompt_tokens.tolist() == [1100, 2200]
    assert trace.arrival.tolist() == [0.0, 2.4503]
    assert [len(prompt(trace, 0)), len(reply(trace, 0)), len(prompt(trace, 1))] == [2, 1, 4]


def test_burstgpt_prompts_that_are_too_short_hold_nothing(tmp_path: Path) -> None:
    header = SAMPLES["burstgpt"].content.splitlines()[0]
    text = f"{header}\n5,u,1,G,40,30,70,C\n9,u,1,G,69,5,74,C\n12,,1,G,64,5,69,C\n13,v,1,G,0,0,0,C\n"
    trace = load("burstgpt", tmp_path, text=text)
    assert hit_blocks(trace) == 0
    assert trace.session.tolist() == [0, 0, -1]
    assert trace.notes["failed_requests"] == "1 left out"
    assert trace.notes["turns"].endswith("0 later prompts hold the one before, 1 are new")
    alone = load("burstgpt", tmp_path, "turns=independent")
    assert hit_blocks(alone) == 0 < hit_blocks(load("burstgpt", tmp_path))
    old = load(
        "burstgpt",
        tmp_path,
        text="Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,G,40,2,42,C\n",
    )
    assert old.session.tolist() == [-1]


def test_bailian_sessions_and_chained_ids(tmp_path: Path) -> None:
    trace = load("bailian", tmp_path)
    assert trace.turn.tolist() == [0, 1]
    # 40 tokens: two full blocks; id 6 under 5 and under 8 are two identities.
    assert prompt(trace, 0) == [0, 1]
    assert prompt(trace, 1) == [0, 1, 2, 3]


# --- Arrivals ---


@pytest.mark.parametrize("name", [n for n in SAMPLES if SAMPLES[n].overrides])
def test_arrivals_must_be_named_where_the_data_has_no_times(tmp_path: Path, name: str) -> None:
    assert options(name).arrivals is None
    with pytest.raises(InputError, match=r"arrivals=null: the data has no times.*poisson workload\.session_rate"):
        load(name, tmp_path, "arrivals=null")
    with pytest.raises(InputError, match="the data has no times; say how they arrive"):
        load(name, tmp_path, "arrivals=recorded")
    with pytest.raises(InputError, match=r"workload\.session_rate=null: arrivals=gamma"):
        load(name, tmp_path, "arrivals=gamma", "session_rate=null")


def many(count: int) -> str:
    return lines(*({"conversation_id": n, "conversation": CHAT} for n in range(count)))


def test_session_starts_and_gaps_are_as_drawn(tmp_path: Path) -> None:
    text = many(400)
    trace = load("lmsys", tmp_path, "session_rate=2", text=text)
    starts = np.sort(trace.arrival[trace.turn == 0])
    assert len(starts) / starts[-1] == pytest.approx(2.0, rel=0.15)
    gaps = np.log(hint(trace).gap_seconds[trace.turn == 1])
    assert gaps.mean() == pytest.approx(4.15, abs=0.15)
    assert gaps.std() == pytest.approx(0.97, abs=0.1)
    bursts = load("lmsys", tmp_path, "session_rate=2", "arrivals=gamma", "arrivals_cv=4", text=text)

    def variation(t: Trace) -> float:
        between = np.diff(np.sort(t.arrival[t.turn == 0]))
        return float(between.std() / between.mean())

    assert variation(trace) == pytest.approx(1.0, abs=0.2)
    assert variation(bursts) > 2.5
    assert load("lmsys", tmp_path, "seed=1", text=text).digest != load("lmsys", tmp_path, text=text).digest
    assert load("lmsys", tmp_path, "seed=1", text=text).digest == load("lmsys", tmp_path, "seed=1", text=text).digest
    assert "400 drawn from log-normals of ln seconds 4.15, 0.97" in trace.notes["gaps_within_sessions"]


def test_options_that_cut(tmp_path: Path) -> None:
    text = many(10)
    assert load("lmsys", tmp_path, "requests=7", text=text).num_requests == 7
    first = load("lmsys", tmp_path, text=text).prompt_tokens.min()
    short = load("lmsys", tmp_path, f"max_prompt_tokens={first}", text=text)
    assert short.num_requests == 10
    assert "10 sessions ended" in short.notes["max_prompt_tokens"]
    with pytest.raises(InputError, match="is that short; raise it"):
        load("lmsys", tmp_path, "max_prompt_tokens=1", text=text)
    assert len(load("lmsys", tmp_path, "generated=none", text=text).generated_blocks) == 0
    unique = load("lmsys", tmp_path, "generated=unique", text=text)
    assert not set(unique.generated_blocks) & set(unique.prompt_blocks)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("template=chatmll", r"workload\.template=chatmll: unknown; choose.*did you mean 'chatml'"),
        ("tokenizer=nowhere.json", r"workload\.tokenizer=nowhere\.json: no such file; give a model's tokenizer\.json"),
        ("reasoning=yes", r"workload\.reasoning"),
        ("gap_sigma=-1", r"workload\.gap_sigma=-1"),
        ("block_size=0", r"workload\.block_size=0"),
        ("path=null", r"workload\.path=None: missing; ask for access"),
    ],
)
def test_impossible_options(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        load("lmsys", tmp_path, override)
    assert "\n" not in str(caught.value)


# --- Parquet, folders, archives ---


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([{"conversation_id": "x", "conversation": CHAT}])
    parquet.write_table(table, tmp_path / "part-0.parquet")
    trace = make("lmsys", f"path='{tmp_path}'", *SAMPLES["lmsys"].overrides)
    assert trace.digest == load("lmsys", tmp_path / "..", text=SAMPLES["lmsys"].content).digest
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="a damaged Parquet file"):
        make("lmsys", f"path='{tmp_path / 'part-0.parquet'}'", *SAMPLES["lmsys"].overrides)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs the package pyarrow: pip install pyarrow"):
        load("lmsys", tmp_path, text=b"PAR1", file="x.parquet")


def test_folders_and_archives(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for n in range(2):
        (folder / f"{n}.jsonl").write_text(lines({"conversation_id": n, "conversation": CHAT}))
    (folder / "notes.txt").write_text("not data")
    whole = make("lmsys", f"path='{folder}'", *SAMPLES["lmsys"].overrides)
    assert whole.num_requests == 4
    with tarfile.open(tmp_path / "parts.tar.gz", "w:gz") as archive:
        archive.add(folder, "parts")
    packed = make("lmsys", f"path='{tmp_path / 'parts.tar.gz'}'", *SAMPLES["lmsys"].overrides)
    assert packed.digest == whole.digest
    (tmp_path / "bad.tar.xz").write_bytes(b"\xfd7zXZ\x00 and no more")
    with pytest.raises(InputError, match="a damaged archive"):
        make("lmsys", f"path='{tmp_path / 'bad.tar.xz'}'", *SAMPLES["lmsys"].overrides)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file in it that is wanted"):
        make("lmsys", f"path='{tmp_path / 'empty'}'", *SAMPLES["lmsys"].overrides)


# --- No bytes make a loader fail otherwise than by a message ---

_SCRAPS = [
    b"null",
    b'""',
    b"[]",
    b"{}",
    b"-1",
    b"1e400",
    b"NaN",
    b'"\\ud800"',
    b"9" * 30,
    b"\xff",
    b'"tool"',
    b",",
    b"\n",
]


@pytest.mark.parametrize("name", SAMPLES)
def test_mutated_files_load_or_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    source = random.Random(f"mutations of {name}")
    sample = SAMPLES[name]
    for n in range(60):
        content = bytearray(sample.content.encode())
        for _ in range(source.choice((1, 1, 3))):
            at = source.randrange(len(content))
            content[at : at + source.randrange(12)] = source.choice(_SCRAPS)
        if n % 10 == 0:
            content = bytearray(source.randbytes(200))
        problem = ""
        try:
            load(name, tmp_path, text=bytes(content)).validate()
        except InputError as error:
            problem = str(error)
        assert "\n" not in problem, bytes(content)
