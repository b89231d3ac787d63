"""Weights & Biases by itself: offline, silent, in the run's folder; with no home, no key and no keyboard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from saecache_rl.tracking.sinks import LocalSink, RunInfo
from saecache_rl.tracking.weights_and_biases import WandbSettings, flatten, resolve_mode, sinks
from tests.commands.support import SMALL, environment, run


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_an_offline_run_is_made(tmp_path: Path) -> None:
    code, out, error = run("train", [*SMALL, "agent=lru"], tmp_path, HOME="/nonexistent", NETRC="/nonexistent/netrc")
    assert (code, error) == (0, "")
    assert "wandb" not in out
    folder = Path(out.splitlines()[-1])
    (recorded,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    content = recorded.read_bytes()
    for part in (b"balanced", b"token_hit_ratio", b"queue_hits", b"ceiling_token_hit_ratio"):
        assert part in content
    assert list((folder / "wandb").glob("offline-run-*/files/media/images/run*.png"))


def test_a_comparison_is_a_run_for_each_agent_and_seed(tmp_path: Path) -> None:
    arguments = [*SMALL, "plots=false", "agents=[lru,lfu]", "seeds=[0,1]", "wandb.mode=offline"]
    code, out, error = run("compare", arguments, tmp_path)
    assert (code, error) == (0, "")
    assert len(list((Path(out.splitlines()[-1]) / "wandb").glob("offline-run-*/run-*.wandb"))) == 4


def test_disabled_does_not_import_it(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom saecache_rl import train\n"
        "try:\n    train.main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert 'wandb' not in sys.modules\n"
    )
    arguments = [*SMALL, "agent=lru", "plots=false", "wandb.mode=disabled"]
    command = [sys.executable, "-c", program, *arguments]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)


def test_online_only_with_a_key_or_a_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve_mode("auto") == "offline"
    assert [resolve_mode(mode) for mode in ("online", "offline", "disabled")] == ["online", "offline", "disabled"]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    assert resolve_mode("auto") == "online"
    (tmp_path / "netrc").write_text("machine elsewhere login user password secret\n")
    assert resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert resolve_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert resolve_mode("auto") == "disabled"
    assert sinks(WandbSettings()) == []


def test_flatten() -> None:
    nested = {"a": 1, "b": {"c": 2.5, "d": "text", "e": [1, 2]}, "f": None}
    assert flatten(nested) == {"a": 1, "b/c": 2.5}
    assert flatten(nested, texts=True) == {"a": 1, "b/c": 2.5, "b/d": "text"}


def test_the_local_sink_keeps_whole_lines_and_cuts_the_rest(tmp_path: Path) -> None:
    info = RunInfo(tmp_path, "run", "w", "a", 0)
    path = tmp_path / "metrics.jsonl"
    for keep, expected in ((0, '{"x": 1}\n{"x": 2}\n'), (1, '{"x": 1}\n{"x": 1}\n{"x": 2}\n')):
        sink = LocalSink(keep)
        sink.start(info)
        for x in (1, 2):
            sink.log(x, {"x": x})
        sink.finish({}, [])
        assert path.read_text() == expected
        with path.open("a") as file:
            file.write('{"x": ')
