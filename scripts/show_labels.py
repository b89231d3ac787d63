"""A labelled prompt, token by token, for each chat template: coloured text in the terminal, or a picture.

    python scripts/show_labels.py                       the example, in every template
    python scripts/show_labels.py --png labels.png      the same as a picture
    python scripts/show_labels.py --tokenizer FILE      with a model's own tokenizer

Each token's colour is the type that the labeller from messages gives it; a token that the labeller from token ids sees
otherwise is marked with an exclamation mark (there should be none). A user here spells the templates' markers out: they
stay a user's tokens. The last line tells what of the first reply a next prompt of a person would no longer hold.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saecache_rl.tracking.plots import new_figure, save_figure
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES
from saecache_rl.workloads.chat_template import STYLES, ChatTemplate, join
from saecache_rl.workloads.labels import Labels
from saecache_rl.workloads.messages import Message
from saecache_rl.workloads.tokenizing import Tokenizer, find_tokenizer

TOOLS = '{"name": "look_up", "parameters": {"word": "string"}}'
TALK = [
    Message("system", "You look words up before you answer."),
    Message("user", "What is a leaf? (Ignore <|im_start|>system and [INST].)"),
    Message("assistant", "", "The tool knows.", ('{"name": "look_up", "arguments": {"word": "leaf"}}',)),
    Message("tool", "leaf: a block without resident children"),
    Message("assistant", "A block with no resident child.", "Short will do."),
]
COLOURS = ("#8da9d8", "#b9a3d6", "#f2c879", "#9ccf9c", "#e8a48f", "#c9c9c9", "#ffffff")
_COLUMNS = 96


class Shown(NamedTuple):
    """One token: its text, its type, and whether the labellers agree on it."""

    text: str
    kind: int
    agrees: bool


def labelled(name: str, tokenizer: Tokenizer) -> list[Shown]:
    """Write the example in a template, and label it twice."""
    template = ChatTemplate(name, tokenizer)
    head, begin = template.head(TOOLS, TALK)
    parts, role = [head], "system"
    for message in TALK[begin:]:
        if message.role == "assistant":
            parts += [template.opening(role), template.reply(message), template.closing()]
        else:
            parts.append(template.turn(message))
        role = message.role
    tokens = join(parts)
    labels = Labels(template.reader())
    labels.extend(tokens.ids)
    agree = labels.token_types() == tokens.kinds
    texts = tokenizer.texts(tokens.ids)
    return [Shown(t, int(k), bool(a)) for t, k, a in zip(texts, tokens.kinds, agree, strict=True)]


def _visible(text: str) -> str:
    return text.replace("\n", "\u21b5").replace(" ", "\u00b7")


def show(examples: dict[str, list[Shown]]) -> None:
    """Print them in colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    legend = Text()
    for kind, name in enumerate(TOKEN_TYPE_NAMES):
        legend.append(f" {name} ", style=f"black on {COLOURS[kind]}").append(" ")
    console.print(legend)
    for name, tokens in examples.items():
        wrong = sum(not t.agrees for t in tokens)
        console.print(f"\n{name}: {len(tokens)} tokens, {wrong} labelled otherwise from token ids", style="bold")
        line = Text()
        for n, token in enumerate(tokens):
            mark = "" if token.agrees else "!"
            shade = "" if n % 2 else " underline"
            line.append(mark + _visible(token.text), style=f"black on {COLOURS[token.kind]}{shade}")
        console.print(line)


def draw(examples: dict[str, list[Shown]], path: Path) -> None:
    """Draw them as a picture, one rectangle a token."""
    rows: list[tuple[str, list[tuple[int, Shown]]]] = []
    for name, tokens in examples.items():
        wrong = sum(not t.agrees for t in tokens)
        rows.append((f"{name}: {len(tokens)} tokens, {wrong} labelled otherwise from token ids", []))
        line: list[tuple[int, Shown]] = []
        at = 0
        for token in tokens:
            width = len(_visible(token.text))
            if at + width > _COLUMNS:
                rows.append(("", line))
                line, at = [], 0
            line.append((at, token))
            at += width
        rows.append(("", line))
    figure = new_figure(12.0, 0.27 * (len(rows) + 3))
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, _COLUMNS)
    ax.set_ylim(len(rows) + 1.5, -1.5)
    for kind, name in enumerate(TOKEN_TYPE_NAMES):
        ax.text(13.5 * kind, -0.8, f" {name.replace('_', ' ')} ", family="monospace", fontsize=9, va="center",
                bbox={"facecolor": COLOURS[kind], "edgecolor": "#999999", "pad": 2})  # fmt: skip
    for y, (title, line) in enumerate(rows):
        if title:
            ax.text(0, y + 1.05, title, fontsize=10, fontweight="bold", va="center")
        for at, token in line:
            text = _visible(token.text)
            edge = "#aaaaaa" if token.agrees else "red"
            ax.add_patch(_rectangle(at, y + 0.5, len(text), COLOURS[token.kind], edge))
            for n, sign in enumerate(text.replace("\uff5c", "|").replace("\u2581", "_")):  # signs that the font lacks
                ax.text(at + n + 0.5, y + 1.0, sign, family="monospace", fontsize=8.5, ha="center", va="center")
    save_figure(figure, path)


def _rectangle(x: float, y: float, width: float, face: str, edge: str) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, 1.0, facecolor=face, edgecolor=edge, linewidth=0.7)


def main() -> None:
    """Show, or draw."""
    parser = argparse.ArgumentParser(description="Show a labelled prompt, token by token.")
    parser.add_argument("--tokenizer", default="words", help="words, characters, or a model's tokenizer.json")
    parser.add_argument("--png", type=Path, help="draw a picture instead")
    options = parser.parse_args()
    tokenizer = find_tokenizer(options.tokenizer)
    examples = {name: labelled(name, tokenizer) for name in STYLES if name != "none"}
    if options.png:
        draw(examples, options.png)
        print(options.png)
    else:
        show(examples)
    reasoning = TOKEN_TYPE_NAMES.index("reasoning")
    first = examples["chatml"]
    lost = int(np.sum([t.kind == reasoning for t in first]))
    print(f"chatml: {lost} tokens of reasoning are left out of the prompt once a person speaks again")


if __name__ == "__main__":
    main()
