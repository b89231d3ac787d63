"""What a person sees of a run: a progress bar and a table at a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

#: Of a run that is not watched at a terminal, a line is printed at each of so many equal parts.
_PLAIN_STEPS = 10

#: Columns that a bar takes beside its title, unit and text.
_BAR = 35
#: Columns beside the text of a cell.
_PADDING = 3

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
    console = Console()
    room = max(0, console.width - len(title) - len(unit) - _BAR)
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task(title, total=total, completed=done, text="")

        def advance(now: int, text: str) -> None:
            bar.update(task, completed=now, text=text if len(text) <= room else text[: max(0, room - 1)] + "…"[:room])

        yield advance


def _tables(widths: Sequence[int], room: int) -> list[list[int]]:
    """Spread columns over tables that fit, each of which begins with the first column; none is ever cut short."""
    tables: list[list[int]] = [[]]
    for i in range(1, len(widths)):
        taken = sum(widths[j] + _PADDING for j in [0, *tables[-1], i])
        if tables[-1] and taken > room:
            tables.append([])
        tables[-1].append(i)
    return [[0, *which] for which in tables]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures. Plain aligned text where it is piped.

    At a terminal too narrow for it, the columns that don't fit follow in tables of their own.
    """
    if sys.stdout.isatty():
        console = Console()
        console.print(title, style="bold", markup=False, highlight=False)
        widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
        widths[0] = min(widths[0], max(12, console.width // 3))  # longer names are folded
        for which in _tables(widths, console.width):
            table = Table(box=SIMPLE_HEAD)
            for i in which:
                head = Text(columns[i])
                if i:
                    table.add_column(head, justify="right", no_wrap=True)
                else:
                    table.add_column(head, overflow="fold", max_width=widths[0])
            for row in rows:
                table.add_row(*(Text(str(row[i])) for i in which))
            console.print(table)
        return
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    print(title)
    for row in [columns, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"  {'  '.join(cells)}".rstrip())


def percent(ratio: float | None) -> str:
    """A ratio as text, in percent; a dash for None."""
    return "-" if ratio is None else f"{100 * ratio:.2f} %"
