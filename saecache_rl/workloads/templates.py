"""The special tokens of chat templates: one table for whoever renders a prompt and whoever reads one.

A `Format` is a family of templates by the texts of its markers; a `Template` is the same in one tokenizer's ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.vocabulary import TokenType


class Mark(Enum):
    """What a special token does."""

    ROLE = "role"  # a turn begins; the tokens that follow name its role
    TURN = "turn"  # a turn of the given type begins
    WITHIN = "within"  # a part of the given type begins, in a turn of the type `inside`
    OVER = "over"  # that part is over, and the turn goes on
    CALL = "call"  # in the assistant's turn: a tool is called; in the system's: tools are defined


@dataclass(frozen=True)
class Marker:
    """A special token and what it does."""

    text: str
    mark: Mark
    kind: TokenType = TokenType.UNKNOWN
    inside: TokenType = TokenType.RESPONSE


#: What the name after a `Mark.ROLE` marker says.
ROLES = {
    "system": TokenType.SYSTEM,
    "developer": TokenType.SYSTEM,
    "user": TokenType.USER,
    "assistant": TokenType.RESPONSE,
    "tool": TokenType.TOOL_OUTPUT,
    "ipython": TokenType.TOOL_OUTPUT,
}
_THINK = (
    Marker("<think>", Mark.WITHIN, TokenType.REASONING),
    Marker("</think>", Mark.OVER, TokenType.REASONING),
)
_CALLS = (Marker("<tool_call>", Mark.CALL),)


@dataclass(frozen=True)
class Format:
    """The markers of one family of chat templates.

    needs: the marker whose token a tokenizer of this family has.
    sections: text that begins the tool definitions within the system's turn.
    begins: type of tokens before the first marker of a prompt that has one.
    """

    name: str
    needs: str
    markers: tuple[Marker, ...]
    sections: tuple[str, ...] = ()
    begins: TokenType = TokenType.UNKNOWN


FORMATS = (
    Format(
        "chatml",
        "<|im_start|>",
        (
            Marker("<|im_start|>", Mark.ROLE),
            *_THINK,
            *_CALLS,
            Marker("<tool_response>", Mark.WITHIN, TokenType.TOOL_OUTPUT, TokenType.USER),
            Marker("</tool_response>", Mark.OVER, TokenType.TOOL_OUTPUT),
        ),
        ("# Tools",),
    ),
    Format(
        "llama3",
        "<|start_header_id|>",
        (Marker("<|start_header_id|>", Mark.ROLE), Marker("<|python_tag|>", Mark.CALL), *_THINK),
        ("Environment: ipython",),
    ),
    Format(
        "mistral",
        "[INST]",
        (
            Marker("[SYSTEM_PROMPT]", Mark.TURN, TokenType.SYSTEM),
            Marker("[/SYSTEM_PROMPT]", Mark.TURN, TokenType.USER),
            Marker("[AVAILABLE_TOOLS]", Mark.TURN, TokenType.TOOL_DEFINITION),
            Marker("[/AVAILABLE_TOOLS]", Mark.TURN, TokenType.USER),
            Marker("[INST]", Mark.TURN, TokenType.USER),
            Marker("[/INST]", Mark.TURN, TokenType.RESPONSE),
            Marker("[TOOL_CALLS]", Mark.CALL),
            Marker("[TOOL_RESULTS]", Mark.TURN, TokenType.TOOL_OUTPUT),
            Marker("[/TOOL_RESULTS]", Mark.TURN, TokenType.RESPONSE),
            Marker("[THINK]", Mark.WITHIN, TokenType.REASONING),
            Marker("[/THINK]", Mark.OVER, TokenType.REASONING),
        ),
    ),
    Format(
        "deepseek",
        "<｜User｜>",
        (
            Marker("<｜User｜>", Mark.TURN, TokenType.USER),
            Marker("<｜Assistant｜>", Mark.TURN, TokenType.RESPONSE),
            *_THINK,
            Marker("<｜tool▁calls▁begin｜>", Mark.CALL),
            Marker("<｜tool▁outputs▁begin｜>", Mark.TURN, TokenType.TOOL_OUTPUT),
            Marker("<｜tool▁outputs▁end｜>", Mark.TURN, TokenType.RESPONSE),
        ),
        ("## Tools",),
        TokenType.SYSTEM,
    ),
)


@dataclass(frozen=True)
class Template:
    """A tokenizer's ids for one `Format`.

    table: uint8 by token id: 1 + place in `markers`, 0 for every other token.
    """

    name: str
    table: npt.NDArray[np.uint8]
    markers: tuple[Marker, ...]
    roles: tuple[tuple[tuple[int, ...], TokenType], ...]
    sections: tuple[tuple[int, ...], ...]
    begins: TokenType


def find_template(
    token_id: Callable[[str], int | None],
    encode: Callable[[str], Sequence[int]],
    formats: Sequence[Format] = FORMATS,
) -> Template | None:
    """The template of a tokenizer, None if it has the special tokens of no known format.

    Args:
        token_id: the id of a text that is one token of the vocabulary, else None.
        encode: ids of ordinary text, no special tokens added.
        formats: the families to look for, in this order.
    """
    for form in formats:
        if token_id(form.needs) is None:
            continue
        ids = [(token_id(marker.text), marker) for marker in form.markers]
        known = [(number, marker) for number, marker in ids if number is not None]
        table = np.zeros(max(number for number, _ in known) + 2, np.uint8)
        for place, (number, _) in enumerate(known):
            table[number] = place + 1
        return Template(
            name=form.name,
            table=table,
            markers=tuple(marker for _, marker in known),
            roles=tuple((tuple(encode(role)), kind) for role, kind in ROLES.items()),
            sections=tuple(tuple(encode(text)) for text in form.sections),
            begins=form.begins,
        )
    return None


def template_of(tokenizer: Any) -> Template | None:
    """The template of a Hugging Face tokenizer."""
    vocabulary = tokenizer.get_vocab()
    return find_template(vocabulary.get, lambda text: tokenizer.encode(text, add_special_tokens=False))
