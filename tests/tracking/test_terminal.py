"""Tables at a terminal: nothing is cut short, however narrow it is, and no text is taken for markup."""

from __future__ import annotations

import io
import re
import sys

import pytest

from saecache_rl.tracking.terminal import print_table, progress

COLUMNS = ["agent", "gap closed", "mean of ratios", "worst", "hit % at 4,000", "hit % at 8,000"]
ROW = ["0.123 [0.111, 0.222]", "0.234 [0.200, 0.300]", "+0.00", "58.20 [53.43, 63.10]", "70.38 [66.53, 74.10]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    return shown


def plain(terminal: Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", ["lru", "a_variant_with_a_name_that_is_rather_long", "[red]x"])
def test_no_figure_is_cut_short(width: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(width, monkeypatch)
    print_table("[bold] title", COLUMNS, [[name, *ROW]])
    shown = plain(terminal)
    assert "…" not in shown
    assert "[bold] title" in shown
    for cell in [*COLUMNS, *ROW]:
        assert cell in shown
    assert max(map(len, shown.splitlines())) <= width
    if len(name) < 20:
        assert name in shown
    tables = shown.count("agent")
    assert tables > 1 if width <= 80 else tables <= 2


def test_the_bar_keeps_its_figures_when_the_text_is_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = at_terminal(90, monkeypatch)
    with progress("4 agents on balanced", 24, "runs") as show:
        show(24, "a_variant_with_a_long_name at 8,000 blocks, seed 0")
    last = plain(terminal).splitlines()[-1]
    assert "24/24" in last
    assert "a_variant" in last
