"""The report as one HTML page, its figures inside it, readable without a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from saecache_rl.characterization import gaps
from saecache_rl.characterization.figures import Panel
from saecache_rl.characterization.findings import duration, parameters, percent
from saecache_rl.characterization.html import STYLE, Cell, columns, heading, row, table
from saecache_rl.characterization.measured import Measured
from saecache_rl.characterization.plain import as_dict

_MARKS = ("p5", "p25", "p50", "p75", "p95", "p99")
_REUSE = """In an infinite cache. A prompt looks up its full blocks, except one that ends with its last token. A block
is matched when it and all blocks before it in the prompt are cached; within a session: the last request that had it was
of the same session. The paper: SAECache, arXiv 2605.18825, on its own workloads."""
_WHICH_GAPS = """From start to start: between the arrivals of a session's successive requests. From a reply's end to the
next start: less the time that the source says the reply took, over the replies that it says it of. A tool answers: the
source says that the reply ended for a tool. No tool call seen: all others, also where the source does not say.
Sub-agents are sessions of their own."""
_HOW_LONG = """p5 to p99: percentiles of the gaps above zero. mu and sigma: mean and deviation of ln seconds, in
brackets 95 % bootstrap intervals over sessions; of the gaps above zero, and with those of no length, which coarse times
make, as 1 ms."""
_HOW_FITTED = """Fitted by maximum likelihood to the gaps above zero. LN(mu, sigma): log-normal. KS: Kolmogorov-Smirnov
distance, 0 is a perfect fit. The last column is the mean a gap over a fifth of the sessions, which the fit had not
seen; higher is better."""


def _quiet(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _facts(measured: Measured, data: dict[str, Any]) -> str:
    shown = {
        "prompt tokens served by an infinite cache": percent(data["ceiling_token_hit_ratio"]),
        "requests": f"{measured.requests:,}",
        "sessions": f"{len(measured.turns):,}",
        "time from first to last": duration(measured.seconds),
        "prompt tokens": f"{measured.prompt_tokens:,}",
        "reply tokens": f"{measured.output_tokens:,}",
        "tokens in a block": f"{measured.block_size:,}",
    }
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown.items())
    return f'<dl class="facts">{items}</dl>'


def _figure(panel: Panel) -> str:
    picture = base64.b64encode(panel.picture).decode("ascii")
    return (
        f"<figure><h3>{escape(panel.title)}</h3><figcaption>{escape(panel.caption)}</figcaption>"
        f'<img alt="{escape(panel.title)}: {escape(panel.caption)}" src="data:image/png;base64,{picture}"></figure>'
    )


def _types(data: dict[str, Any]) -> str:
    above = columns(("", 1), ("distinct blocks", 5), ("blocks that prompts look up", 4))
    head: list[Cell] = [
        ("token type", "text"), "number", "ever matched", "in the paper", "ever within a session", "ever across",
        "of all", "matched", "within a session", "across",
    ]  # fmt: skip
    total = sum(of["matchable_blocks"] for of in data["reuse_by_type"].values()) or 1
    rows = [
        row([
            (name.replace("_", " "), "text"),
            f"{of['distinct_blocks']:,}",
            _share(of["reuse_rate"]),
            _share(of["paper_reuse_rate"]),
            _share(of["reuse_rate_within_sessions"]),
            _share(of["reuse_rate_across_sessions"]),
            _share(of["matchable_blocks"] / total),
            _share(of["hit_ratio"]),
            _share(of["hit_ratio_within_sessions"]),
            _share(of["hit_ratio_across_sessions"]),
        ])
        for name, of in data["reuse_by_type"].items()
        if of["distinct_blocks"] or of["matchable_blocks"]
    ]  # fmt: skip
    return table(head, rows, above)


def _gap_lengths(data: dict[str, Any]) -> str:
    rows = []
    for gap in data["gaps"]:
        marks = gap["percentiles_seconds"]
        cells = [duration(marks[m]) if marks else "-" for m in _MARKS]
        rows.append(row([(gap["kind"], "text"), f"{gap['count']:,}", *cells]))
    return table([("gaps", "text"), "above zero", *_MARKS], rows)


def _log_normals(data: dict[str, Any]) -> str:
    """The log-normal under both treatments of the gaps of no length."""

    def law(found: dict[str, Any] | None) -> list[Cell]:
        if found is None:
            return ["-", "-"]
        return [f"{found[of]:.2f} [{found[f'{of}_95'][0]:.2f}, {found[f'{of}_95'][1]:.2f}]" for of in ("mu", "sigma")]

    rows = [
        row([
            (gap["kind"], "text"),
            *law(gap["log_normal_above_zero"]),
            f"{gap['not_above_zero']:,}",
            *law(gap["log_normal_others_as_1_ms"]),
        ])
        for gap in data["gaps"]
    ]  # fmt: skip
    above = columns(("", 1), ("log-normal of those above zero", 2), ("", 1), ("with those too, as 1 ms", 2))
    return table([("gaps", "text"), "mu", "sigma", "of no length", "mu", "sigma"], rows, above)


def _gap_fits(found: list[gaps.Gaps]) -> str:
    head: list[Cell] = [("distribution", "text"), ("parameters", "text"), "KS distance", "ln likelihood, held out"]
    rows = []
    for gap in found:
        rows.append(heading(gap.kind, len(head)))
        for fit in gap.fits:
            score = f"{fit.held_out:.3f}" if fit.held_out == fit.held_out else "-"
            rows.append(row([(fit.family, "text"), (parameters(fit), "text"), f"{fit.ks:.3f}", score]))
        if not gap.fits:
            rows.append(row([("too few to fit", "text"), "", "", ""]))
    return table(head, rows, kind="parts")


def _gap_section(measured: Measured, data: dict[str, Any]) -> list[str]:
    title = "<h2>Gaps between a session's requests</h2>"
    if not measured.gaps:
        return [title, "<p>No session has a second request.</p>"]
    return [
        title,
        _quiet(_WHICH_GAPS),
        _gap_lengths(data),
        _quiet(_HOW_LONG),
        _log_normals(data),
        _gap_fits(measured.gaps),
        _quiet(_HOW_FITTED),
    ]


def write_page(measured: Measured, panels: Sequence[Panel], path: Path) -> None:
    """Write the page, whole or not at all."""
    data = as_dict(measured)
    how = {
        "sessions from": "the clients' ids" if measured.source == "hint" else "inferred by what prompts extend",
        **measured.notes,
    }
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(measured.name)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(measured.name)}</h1>",
        _quiet("What the prompts of this workload share, and when they come back. No policy is run here."),
        _facts(measured, data),
        "<h2>In short</h2>",
        "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in data["findings"]) + "</ul>",
    ]
    if panels:
        parts += ["<h2>Figures</h2>", '<div class="figures">', *map(_figure, panels), "</div>"]
    parts += [
        "<h2>Reuse by token type</h2>",
        _quiet(_REUSE),
        _types(data),
        "<h2>Reuse by place in the prompt</h2>",
        table(
            [("index of the block", "text"), "blocks looked up", "matched"],
            [
                row([(k, "text"), f"{of['blocks']:,}", _share(of["hit_ratio"])])
                for k, of in data["reuse_by_offset"].items()
            ],
        ),
        *_gap_section(measured, data),
        "<h2>How this trace came about</h2>",
        table(
            [("what", "text"), ("how", "text")],
            [row([(k.replace("_", " "), "text"), (v, "text long")]) for k, v in how.items()],
        ),
        "</body></html>",
    ]
    partial = path.with_name(path.name + ".partial")
    # A file's name may hold bytes that are no text.
    partial.write_text("\n".join(parts) + "\n", encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
