"""What a person sees of a run: a progress bar and a table at a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

#: Of a run that is not watched at a terminal, a line is printed at each of so many equal parts.
_PLAIN_STEPS = 10

Update = Callable[[int, str], None]


@contextlib.contextmanager
def progress(title: str, total: int, unit: str, done: int = 0) -> Iterator[Update]:
    """Show how far something is; yields a function of what is done so far and of a short text beside it.

    Args:
        title: what is going on.
        total: of all.
        unit: what is counted, in the plural.
        done: where it starts.
    """
    if not sys.stdout.isatty():
        shown = done * _PLAIN_STEPS // max(total, 1)

        def update(now: int, text: str) -> None:
            nonlocal shown
            part = now * _PLAIN_STEPS // max(total, 1)
            if part > shown:
                shown = part
                print(f"{title}: {now:,} of {total:,} {unit}{', ' + text if text else ''}", flush=True)

        yield update
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(), transient=False) as bar:
        task = bar.add_task(title, total=total, completed=done, text="")

        def advance(now: int, text: str) -> None:
            bar.update(task, completed=now, text=text)

        yield advance


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures. Plain aligned text where it is piped."""
    if sys.stdout.isatty():
        table = Table(box=SIMPLE_HEAD)
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        Console().print(title, style="bold", markup=False, highlight=False)
        Console().print(table, markup=False)
        return
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    print(title)
    for row in [columns, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"  {'  '.join(cells)}".rstrip())


def percent(ratio: float | None) -> str:
    """A ratio as text, in percent; a dash for None."""
    return "-" if ratio is None else f"{100 * ratio:.2f} %"
