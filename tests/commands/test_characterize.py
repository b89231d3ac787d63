"""The command `characterize`: what it leaves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.support import SMALL, run, succeed


def test_a_report_is_left(tmp_path: Path) -> None:
    folder = succeed("characterize", [*SMALL, f"hydra.run.dir={tmp_path / 'run'}"], tmp_path)
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == [
        "characterization.json",
        "characterization.png",
        "config.yaml",
        "report.html",
    ]
    data = json.loads((folder / "characterization.json").read_text())
    page = (folder / "report.html").read_text()
    assert data["requests"] == 300
    for text in data["findings"]:
        assert text.replace("'", "&#x27;") in page
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("https://", "")
    assert (folder / "characterization.png").read_bytes()[:4] == b"\x89PNG"
    again = succeed("characterize", [f"resume={folder}"], tmp_path)
    assert json.loads((again / "characterization.json").read_text()) == data


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no workload is chosen; give +workload=NAME"),
        ([*SMALL, "sessions=hints"], "sessions=hints: unknown; did you mean 'hint'?"),
        ([*SMALL, "session=hint"], "no option 'session'; did you mean 'sessions'"),
        (["+workload=sharegpt", "workload.path=/no/such"], "workload.arrivals=null: the data has no times"),
        (["+workload=mooncake", "workload.path=/no/such"], "/no/such: no such file or folder"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    code, _, error = run("characterize", arguments, tmp_path)
    assert code == 2
    assert says in error
    assert error.count("\n") == 1
