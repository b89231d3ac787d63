"""What a workload is like: reuse, gaps, sessions, and what no policy can change.

python -m saecache_rl.characterize +workload=agentic_shift
"""

from __future__ import annotations

from pathlib import Path

from saecache_rl.characterization.figures import draw, panels
from saecache_rl.characterization.findings import findings
from saecache_rl.characterization.measured import Measured, measure
from saecache_rl.characterization.page import write_page
from saecache_rl.characterization.plain import as_dict
from saecache_rl.commands import runs
from saecache_rl.commands.cli import command
from saecache_rl.commands.settings import CharacterizeSettings, write
from saecache_rl.tracking.terminal import percent, print_table
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES


def run(settings: CharacterizeSettings, folder: Path) -> Measured:
    """Measure a workload and leave the report in `folder`, which exists.

    Raises:
        InputError: the workload can't be had as asked.
    """
    trace = runs.make_trace(settings.workload, None)
    if settings.resume is None:
        write(settings, folder)
    measured = measure(trace, settings.sessions)
    runs.write_json(folder / "characterization.json", as_dict(measured))
    if settings.plots:
        draw(measured, folder / "characterization.png")
    write_page(measured, panels(measured) if settings.plots else [], folder / "report.html")
    print_measured(measured)
    return measured


def print_measured(measured: Measured) -> None:
    """Print the reuse by token type and the findings."""
    reuse = measured.reuse

    def ratio(part: int, whole: int) -> str:
        return percent(part / whole if whole else None)

    rows = [
        [
            name.replace("_", " "),
            f"{int(reuse.blocks[t]):,}",
            ratio(int(reuse.reused[t]), int(reuse.blocks[t])),
            ratio(int(reuse.hits[0][t]), int(reuse.accesses[t])),
            ratio(int(reuse.hits[1][t]), int(reuse.accesses[t])),
        ]
        for t, name in enumerate(TOKEN_TYPE_NAMES)
        if reuse.blocks[t]
    ]
    head = ["", "distinct blocks", "ever matched", "hit ratio within sessions", "across"]
    print_table(measured.title, head, rows)
    for text in findings(measured):
        print(f"- {text}")


@command("characterize", CharacterizeSettings)
def main(settings: CharacterizeSettings, folder: Path) -> float:
    """Measure the workload and write the report into `folder`."""
    measured = run(settings, folder)
    print(folder)
    return measured.ceiling.token_hit_ratio


if __name__ == "__main__":
    main()
