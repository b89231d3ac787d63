"""What `compare` leaves, and that an interrupted one loses nothing."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from pathlib import Path

import pytest

from saecache_rl.commands import runs
from tests.commands.support import QUIET, SMALL, finish, run, start, succeed, train_settings
from tests.commands.test_train import SUMMARY_KEYS, wait_for_lines

VARIANT = "still: saecache agent/queue_weights=frozen window=50"
ARGUMENTS = [
    *SMALL,
    "wandb.mode=disabled",
    f'agents=[saecache,lru,"{VARIANT}",optimum]',
    "seeds=[0,1]",
    "num_blocks=[3000,5000,8000]",
]
TIMES = {"wall_seconds", "block_accesses_per_second"}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return succeed("compare", [*ARGUMENTS, "hydra.run.dir=whole"], tmp_path_factory.mktemp("compare"))


def test_the_folder_of_a_comparison(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names == {".hydra", "cache", "config.yaml", "journal.jsonl", "results.csv", "table.md", "hit_ratio.png"}
    found = rows(whole)
    order = list(dict.fromkeys(row["agent"] for row in found))
    assert order == ["saecache", "lru", "still", "optimum"]
    per_agent = [[row for row in found if row["agent"] == agent] for agent in order]
    assert len({len(part) for part in per_agent}) == 1
    keys = [(row["agent"], int(row["seed"]), int(row["num_blocks"])) for row in found]
    assert keys == sorted(keys, key=lambda k: (order.index(k[0]), k[1], k[2]))
    for key in SUMMARY_KEYS:
        assert key in TIMES or any(column == key or column.startswith(f"{key}_") for column in found[0]), key
    for row in found:
        ratio, lru, optimum = (float(row[k]) for k in ("token_hit_ratio", "reference_lru", "reference_optimum"))
        assert ratio <= optimum <= float(row["ceiling_token_hit_ratio"])
        assert ratio == {"lru": lru, "optimum": optimum}.get(row["agent"], ratio)
        assert row["oracle"] == str(row["agent"] == "optimum")
        assert row["window"] == ("50" if row["agent"] == "still" else "100")
    assert len({row["trace_digest"] for row in found}) == 2
    table = (whole / "table.md").read_text()
    for part in ("| saecache |", "| still |", "| optimum (oracle) | 1.000", "sum over capacities"):
        assert part in table


def test_lru_and_the_optimum_run_once(whole: Path) -> None:
    lines = (whole / "journal.jsonl").read_text().splitlines()
    assert len(lines) == len(rows(whole))


def test_an_interrupted_comparison_loses_nothing(tmp_path: Path, whole: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGINT):
        process = start("compare", [*ARGUMENTS, f"hydra.run.dir={number.name}"], tmp_path)
        folder = tmp_path / number.name
        wait_for_lines(folder / "journal.jsonl", 6, process)
        process.send_signal(number)
        code, _, error = finish(process)
        if number == signal.SIGINT:
            assert code == 130
            assert error == f"compare: interrupted; continue with: python -m saecache_rl.compare resume={folder}\n"
            assert rows(folder) != []
        kept = (folder / "journal.jsonl").read_bytes()
        assert 6 <= kept.count(b"\n") < len(rows(whole))
        (folder / "journal.jsonl").write_bytes(kept + b'{"key": "cut sho')

        code, _, error = run("compare", [f"resume={folder}"], tmp_path)
        assert (code, error) == (0, "")
        assert (folder / "journal.jsonl").read_bytes().startswith(kept)
        assert rows(folder) == rows(whole)
        assert (folder / "table.md").read_text() == (whole / "table.md").read_text()


def test_compare_and_train_agree(tmp_path: Path, whole: Path) -> None:
    row = next(r for r in rows(whole) if r["agent"] == "saecache" and r["seed"] == "1")
    folder = succeed("train", [*SMALL, *QUIET, "seed=1", f"num_blocks={row['num_blocks']}"], tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("hit_tokens", "evictions", "trace_digest", "gap_closed"):
        assert str(summary[key]) == row[key]


def test_sweep_and_auto_are_read_off_the_trace() -> None:
    options = train_settings()
    trace = runs.make_trace(options.workload, 0)
    sweep = runs.capacities("sweep", trace, {})
    assert sweep == sorted(set(sweep))
    assert 2 <= len(sweep) <= 20
    (auto,) = runs.capacities("auto", trace, {})
    assert sweep[0] <= auto <= sweep[-1]
    assert runs.capacities("auto", trace, {"num_blocks": auto + 1}) == [auto + 1]
    assert runs.capacities([auto, 8e3], trace, {}) == [auto, 8000]


def test_resume_refuses_other_data(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy" / "cache" / "traces.json").write_text('{"0": "of other data", "1": "of other data"}')
    code, _, error = run("compare", [f"resume={tmp_path / 'copy'}"], tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "the workload's data has changed" in error
