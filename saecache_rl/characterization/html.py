"""Parts of a page in HTML: its style, for wide and narrow screens, light and dark; tables; all texts escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --text: #222; --ground: #fff; --quiet: #5b6166; --stripe: #f4f5f7; --line: #b4babf }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6e8; --ground: #17191b; --quiet: #a3abb2; --stripe: #22262a; --line: #565d63 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 1.5rem auto; padding: 0 1rem;
  color: var(--text); background: var(--ground); overflow-wrap: break-word }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem } h3 { font-size: 1rem; margin: 0 }
dl.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); gap: .8rem; margin: 1.2rem 0 }
dl.facts div { border-left: 3px solid var(--line); padding-left: .6rem }
dl.facts dt { color: var(--quiet); font-size: .85rem } dl.facts dd { margin: 0; font-size: 1.1rem; font-weight: 600 }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem }
figure { margin: 0 } figure img { width: 100%; height: auto; background: #fff; border-radius: 3px }
figcaption { font-size: .92rem }
.table { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse; font-size: .92rem }
th, td { padding: .25rem .6rem; text-align: right; vertical-align: bottom }
td { white-space: nowrap; vertical-align: top } thead tr:last-child th { border-bottom: 1px solid var(--line) }
th { font-weight: 600 } th.group { text-align: center; border-bottom: 1px solid var(--line) }
.text { text-align: left } td.long { white-space: normal; min-width: 16rem; max-width: 34rem }
tbody tr:nth-child(even) td { background: var(--stripe) } tbody.parts td, tbody.parts th { background: none !important }
tbody th { text-align: left; padding-top: .6rem } li { margin-bottom: .4rem } .quiet { color: var(--quiet) }
"""

#: A cell's text, or its text and its class.
Cell = str | tuple[str, str]


def _open(tag: str, kind: str) -> str:
    return f'<{tag} class="{escape(kind)}">' if kind else f"<{tag}>"


def row(cells: Iterable[Cell], tag: str = "td", kind: str = "") -> str:
    """Return a row of a table, of a class if given."""
    texts = []
    for cell in cells:
        text, of = cell if isinstance(cell, tuple) else (cell, "")
        texts.append(f"{_open(tag, of)}{escape(text)}</{tag}>")
    return f"{_open('tr', kind)}{''.join(texts)}</tr>"


def heading(text: str, columns: int) -> str:
    """Return a row that names those below it."""
    return f'<tr><th colspan="{columns}">{escape(text)}</th></tr>'


def columns(*groups: tuple[str, int]) -> str:
    """Return a row over a table's head: names of groups of columns, and how many each has; "" names none."""
    cells = (
        f'<th class="group" colspan="{n}">{escape(name)}</th>' if name else f'<th colspan="{n}"></th>'
        for name, n in groups
    )
    return f"<tr>{''.join(cells)}</tr>"


def table(head: Sequence[Cell], rows: Iterable[str], above: str = "", kind: str = "") -> str:
    """Return a table, which scrolls sideways where it is too wide; `above` is a row of HTML over the head."""
    body = f"{_open('tbody', kind)}{''.join(rows)}</tbody>"
    return f'<div class="table"><table><thead>{above}{row(head, "th")}</thead>{body}</table></div>'
