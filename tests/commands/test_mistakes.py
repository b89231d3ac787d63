"""A mistake in a command ends with exit code 2 and one line that names the place and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from saecache_rl import compare, train
from tests.commands.support import QUIET, SMALL, run

CHAT = ["+workload=chat", "workload.requests=200"]
WORKLOADS = "+workload=NAME, with one of: agentic, agentic_shift,"

TRAIN = {
    "no workload": ([], ["no workload is chosen", WORKLOADS]),
    "no workload, but an option of one": (["workload.path=x"], ["no workload is chosen", WORKLOADS]),
    "workload without its plus": (["workload=chat"], ["'workload=chat' lacks its +", WORKLOADS]),
    "unknown workload": (["+workload=agentic_shfit"], ["did you mean 'agentic_shift'?", WORKLOADS]),
    "misspelt option": ([*CHAT, "windw=10"], ["no option 'windw'", "did you mean 'window'"]),
    "misspelt option, forced": ([*CHAT, "++windw=10"], ["no option 'windw'", "did you mean 'window'"]),
    "misspelt option of the workload": (
        ["+workload=mooncake", "workload.pth=x"],
        ["no option 'workload.pth'", "did you mean 'workload.path'", "workload has: "],
    ),
    "misspelt option of an agent": (
        [*CHAT, "agent.token_weights.rat=1"],
        ["did you mean 'agent.token_weights.rate'", "agent.token_weights has: decay, "],
    ),
    "unknown addition": ([*CHAT, "+foo=1"], ["no option 'foo'", "--help"]),
    "unknown agent": ([*CHAT, "agent=saecahe"], ["agent=saecahe: unknown; did you mean 'saecache'?", "known: ", "lru"]),
    "unknown module": ([*CHAT, "agent/meta=bandt"], ["did you mean 'bandit'?", "frozen"]),
    "module that the agent has not": ([*CHAT, "agent=lru", "agent/meta=frozen"], ["'agent/meta'"]),
    "no agent": ([*CHAT, "~agent"], ["no agent is chosen"]),
    "no value": ([*CHAT, "window"], ["cannot read 'window'", "name=value"]),
    "unknown flag": ([*CHAT, "--windw=10"], ["--windw=10", "--help"]),
    "flag without its value": ([*CHAT, "--cfg"], ["--cfg", "--help"]),
    "text for a number": ([*CHAT, "window=abc"], ["window=abc", "Integer"]),
    "window of nothing": ([*CHAT, "window=0"], ["window=0: a window has at least one request"]),
    "no checkpoint ever": ([*CHAT, "checkpoint_every=0"], ["checkpoint_every=0"]),
    "unknown reward": ([*CHAT, "reward=hits"], ["reward=hits: unknown", "token_hit_ratio"]),
    "unknown W&B mode": ([*CHAT, "wandb.mode=offlin"], ["did you mean 'offline'?"]),
    "capacity of nothing": ([*CHAT, "num_blocks=0"], ["num_blocks=0", "positive whole number"]),
    "capacity in parts": ([*CHAT, "num_blocks=10.5"], ["num_blocks=10.5", "positive whole number"]),
    "capacity below one request": (
        [*CHAT, "num_blocks=2"],
        ["num_blocks=2: the largest request of chat needs", "auto"],
    ),
    "unknown capacity": ([*CHAT, "num_blocks=atuo"], ["num_blocks=atuo", "did you mean 'auto'?"]),
    "capacities": ([*CHAT, "num_blocks=[4000,8000]"], ["one run has one capacity", "saecache_rl.compare"]),
    "no such file": (["+workload=mooncake", "workload.path=absent.jsonl"], ["absent.jsonl"]),
    "resume of nothing": (["resume=absent"], ["absent: no such folder"]),
    "resume with more": (["resume=absent", "window=5"], ["leave out window=5"]),
    "resume of what is no run": (["resume=."], ["no config.yaml there"]),
}

COMPARE = {
    "no workload": ([], ["compare: no workload is chosen", WORKLOADS]),
    "unknown agent": ([*CHAT, "agents=[saecahe]"], ["'saecahe' is unknown; did you mean 'saecache'?", "known: "]),
    "agent option of train": ([*CHAT, "agent=lru"], ["'agent'", "did you mean 'agents'"]),
    "no agents": ([*CHAT, "agents=[]"], ["agents=[]: give at least one of: ", "saecache"]),
    "agent twice": ([*CHAT, "agents=[lru,lru]"], ["'lru' is named twice"]),
    "variant's misspelt option": (
        [*CHAT, 'agents=["x: saecache agent.token_weights.rat=1"]'],
        ["agents: x: no option 'agent.token_weights.rat'", "did you mean 'agent.token_weights.rate'"],
    ),
    "variant's unknown module": ([*CHAT, 'agents=["x: saecache agent/meta=frzen"]'], ["x", "did you mean 'frozen'?"]),
    "variant of another option": (
        [*CHAT, 'agents=["x: lru num_blocks=3"]'],
        ["'num_blocks=3' of x is not the agent's"],
    ),
    "variant without quotes": (
        [*CHAT, "agents=[{name:x,overrides:[agent/meta=frozen]}]"],
        ["cannot read", "in quotes"],
    ),
    "entry of no form": ([*CHAT, "agents=[{nme:x}]"], ["no 'nme' in an entry; did you mean 'name'?"]),
    "seed twice": ([*CHAT, "seeds=[1,1]"], ["a seed is named twice"]),
    "capacity below one request": ([*CHAT, "num_blocks=[9000,2]"], ["num_blocks=2: the largest request of chat needs"]),
    "capacity twice": ([*CHAT, "num_blocks=[9000,9000]"], ["a capacity is named twice"]),
}


@pytest.mark.parametrize(
    ("command", "arguments", "parts"),
    [
        *(pytest.param("train", *case, id=f"train: {name}") for name, case in TRAIN.items()),
        *(pytest.param("compare", *case, id=f"compare: {name}") for name, case in COMPARE.items()),
    ],
)
def test_one_line_and_exit_code_2(
    command: str,
    arguments: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    with pytest.raises(SystemExit) as end:
        {"train": train.main, "compare": compare.main}[command]()
    printed = capsys.readouterr()
    assert end.value.code == 2, printed.err
    assert printed.err.count("\n") == 1, printed.err
    assert printed.err.startswith(f"{command}: ")
    for part in parts:
        assert part in printed.err
    left = [p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()]
    assert all(".hydra" in p.parts for p in left), left


def test_exit_codes_of_a_fresh_process(tmp_path: Path) -> None:
    code, out, error = run("train", ["workload=chat"], tmp_path)
    assert (code, out, error.count("\n")) == (2, "", 1)
    code, out, error = run("train", ["--help"], tmp_path)
    assert (code, error) == (0, "")
    for part in ("+workload=agentic_shift", "num_blocks=auto", "agent: ", "workload: agentic,", "resume=FOLDER"):
        assert part in out


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_names_every_option(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    with pytest.raises(SystemExit) as end:
        {"train": train.main, "compare": compare.main}[command]()
    text = capsys.readouterr().out
    assert not end.value.code
    kind = {"train": train.TrainSettings, "compare": compare.CompareSettings}[command]
    groups = {"workload", "engine", "predictor", "agent", "wandb"}
    for option in kind.__dataclass_fields__:
        assert (f"{option}=" if option not in groups else option) in text, option


def test_a_folder_holds_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["train", *SMALL, *QUIET, "agent=lru", "hydra.run.dir=here"])
        with pytest.raises(SystemExit) as end:
            train.main()
        codes.append(end.value.code)
    assert codes == [0, 2]
    assert f"continue it with resume={tmp_path / 'here'}" in capsys.readouterr().err
