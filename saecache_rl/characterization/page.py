"""The report as one HTML page, its figure inside it, readable without a network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from saecache_rl.characterization.measured import Measured, as_dict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: 14px } th, td { padding: .25rem .7rem; text-align: right }
th { border-bottom: 1px solid #999; font-weight: 600; vertical-align: bottom } td:first-child, th:first-child {
  text-align: left }
tr:nth-child(even) td { background: #f5f6f7 } img { max-width: 100% } li { margin-bottom: .4rem }
.table { overflow-x: auto } .quiet { color: #666 }
"""


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="table"><table>{line(head, "th")}{body}</table></div>'


def _types(data: dict[str, Any]) -> str:
    head = [
        "token type", "distinct blocks", "matched at least once", "in the paper", "within sessions", "across sessions",
        "share of matchable blocks", "hit ratio", "within", "across",
    ]  # fmt: skip
    total = sum(of["matchable_blocks"] for of in data["reuse_by_type"].values()) or 1
    rows = [
        [
            name.replace("_", " "),
            f"{of['distinct_blocks']:,}",
            _percent(of["reuse_rate"]),
            _percent(of["paper_reuse_rate"]),
            _percent(of["reuse_rate_within_sessions"]),
            _percent(of["reuse_rate_across_sessions"]),
            _percent(of["matchable_blocks"] / total),
            _percent(of["hit_ratio"]),
            _percent(of["hit_ratio_within_sessions"]),
            _percent(of["hit_ratio_across_sessions"]),
        ]
        for name, of in data["reuse_by_type"].items()
        if of["distinct_blocks"] or of["matchable_blocks"]
    ]
    return _table(head, rows)


def _gaps(data: dict[str, Any]) -> str:
    head = ["gaps", "distribution", "parameters", "KS distance", "held-out ln likelihood a gap"]
    rows = []
    for gap in data["gaps"]:
        for n, fit in enumerate(gap["fits"]):
            parameters = ", ".join(f"{k.replace('_', ' ')} {v:.3g}" for k, v in fit["parameters"].items())
            what = f"{gap['kind']} ({gap['count']:,})" if n == 0 else ""
            rows.append(
                [what, fit["family"], parameters, _number(fit["ks_distance"]), _number(fit["held_out_log_likelihood"])]
            )
        if not gap["fits"]:
            rows.append([f"{gap['kind']} ({gap['count']:,})", "too few to fit", "", "", ""])
    return _table(head, rows) if rows else "<p>No session has a second request.</p>"


def write_page(measured: Measured, figure: Path | None, path: Path) -> None:
    """Write the page, whole or not at all."""
    data = as_dict(measured)
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(measured.name)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(measured.title)}</h1>",
        "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in data["findings"]) + "</ul>",
    ]
    if figure is not None:
        picture = base64.b64encode(figure.read_bytes()).decode("ascii")
        parts.append(f'<img alt="the figures below, drawn" src="data:image/png;base64,{picture}">')
    parts += [
        "<h2>Reuse by token type</h2>",
        _types(data),
        '<p class="quiet">In an infinite cache. A block is matched when all blocks before it in the prompt are cached '
        "too; within sessions: the last request that had it was of the same session. The paper: SAECache, "
        "arXiv 2605.18825, on its own workloads.</p>",
        "<h2>Reuse by place in the prompt</h2>",
        _table(
            ["index of the block", "blocks", "matched"],
            [[k, f"{of['blocks']:,}", _percent(of["hit_ratio"])] for k, of in data["reuse_by_offset"].items()],
        ),
        "<h2>Gaps between a session's requests</h2>",
        _gaps(data),
        '<p class="quiet">Fitted by maximum likelihood to the gaps above zero; mu and sigma are those of ln seconds. A '
        "fifth of the sessions is held out for the last column, higher is better.</p>",
        "<h2>How this trace came about</h2>",
        _table(["what", "how"], [[k.replace("_", " "), v] for k, v in {
            "sessions": "the clients' ids" if measured.source == "hint" else "inferred by what prompts extend",
            **measured.notes,
        }.items()]),
        "</body></html>",
    ]  # fmt: skip
    partial = path.with_name(path.name + ".partial")
    partial.write_text("\n".join(parts) + "\n", encoding="utf-8")
    partial.replace(path)
