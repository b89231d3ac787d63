"""Token types of a request, read off the special tokens of its chat template.

Only token ids count, so that a role marker spelt out in a user's text, which the tokenizer gives ordinary ids, labels
nothing. A marker also counts only where the template puts it: `<think>` within the assistant's turn, a tool's response
outside it. A block has the type of most of its tokens, the earlier on a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import NUM_TOKEN_TYPES, TokenType

Tokens = npt.NDArray[np.int32]


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


_ROLES = {
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


def find_template(token_id: Callable[[str], int | None], encode: Callable[[str], Sequence[int]]) -> Template | None:
    """The template of a tokenizer, None if it has the special tokens of no known format.

    Args:
        token_id: the id of a text that is one token of the vocabulary, else None.
        encode: ids of ordinary text, no special tokens added.
    """
    for form in FORMATS:
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
            roles=tuple((tuple(encode(role)), kind) for role, kind in _ROLES.items()),
            sections=tuple(tuple(encode(text)) for text in form.sections),
            begins=form.begins,
        )
    return None


def template_of(tokenizer: Any) -> Template | None:
    """The template of a Hugging Face tokenizer."""
    vocabulary = tokenizer.get_vocab()
    return find_template(vocabulary.get, lambda text: tokenizer.encode(text, add_special_tokens=False))


@dataclass
class Labels:
    """The token types of one request so far, as parts: from token `starts[i]` on, tokens are of type `kinds[i]`.

    has_tools: tools are defined, or a tool's output stands in it. calls_tool: the latest turn of the assistant calls
    a tool.
    """

    template: Template | None
    starts: list[int] = field(default_factory=lambda: [0])
    kinds: list[TokenType] = field(default_factory=lambda: [TokenType.UNKNOWN])
    length: int = 0
    has_tools: bool = False
    calls_tool: bool = False
    _turn: TokenType = TokenType.UNKNOWN
    _marked: bool = False

    def _part(self, start: int, kind: TokenType) -> None:
        if kind in (TokenType.TOOL_DEFINITION, TokenType.TOOL_OUTPUT):
            self.has_tools = True
        if self.kinds[-1] == kind:
            return
        if self.starts[-1] == start:
            self.kinds[-1] = kind
        else:
            self.starts.append(start)
            self.kinds.append(kind)

    def extend(self, tokens: Tokens) -> None:
        """Read further tokens."""
        begin, template = self.length, self.template
        self.length += len(tokens)
        if template is None:
            return
        table = template.table
        places = np.flatnonzero(table[np.minimum(tokens, len(table) - 1)])
        for n, at in enumerate(places.tolist()):
            marker = template.markers[table[tokens[at]] - 1]
            if not self._marked:
                self._marked = True
                if self.kinds[0] == TokenType.UNKNOWN and template.begins != TokenType.UNKNOWN:
                    self.kinds[0] = self._turn = template.begins
                    self._sections(tokens, 0, at, begin)
            if marker.mark is Mark.ROLE:
                kind = next(
                    (k for ids, k in template.roles if tuple(tokens[at + 1 : at + 1 + len(ids)].tolist()) == ids),
                    TokenType.UNKNOWN,
                )
                self._begin_turn(begin + at, kind)
                if kind == TokenType.SYSTEM:
                    end = next((p for p in places[n + 1 :].tolist() if self._is_turn(template, tokens[p])), len(tokens))
                    self._sections(tokens, at, end, begin)
            elif marker.mark is Mark.TURN:
                self._begin_turn(begin + at, marker.kind)
            elif marker.mark is Mark.WITHIN:
                if self._turn == marker.inside:
                    self._part(begin + at, marker.kind)
            elif marker.mark is Mark.OVER:
                if self.kinds[-1] == marker.kind and self._turn != marker.kind:
                    self._part(begin + at + 1, self._turn)
            elif self._turn == TokenType.RESPONSE and self.kinds[-1] == TokenType.RESPONSE:
                self.calls_tool = True
            elif self._turn == TokenType.SYSTEM:
                self.has_tools = True

    @staticmethod
    def _is_turn(template: Template, token: int) -> bool:
        return template.markers[template.table[token] - 1].mark in (Mark.ROLE, Mark.TURN)

    def _begin_turn(self, at: int, kind: TokenType) -> None:
        self._turn = kind
        self.calls_tool = False
        self._part(at, kind)

    def _sections(self, tokens: Tokens, start: int, end: int, begin: int) -> None:
        """Tool definitions within the system's turn ``tokens[start:end]``."""
        assert self.template is not None
        for ids in self.template.sections:
            for at in (np.flatnonzero(tokens[start:end] == ids[0]) + start).tolist():
                if tuple(tokens[at : at + len(ids)].tolist()) == ids:
                    self._part(begin + at, TokenType.TOOL_DEFINITION)
                    return

    def block_types(self, first: int, count: int, block_size: int) -> npt.NDArray[np.uint8]:
        """(count,) types of the full blocks from number `first` on."""
        if len(self.kinds) == 1:
            return np.full(count, int(self.kinds[0]), np.uint8)
        kinds = np.array(self.kinds, np.uint8)
        found = np.empty(count, np.uint8)
        _block_types(np.array(self.starts, np.int64), kinds, first, block_size, found)
        return found


@kernel(types.void(types.int64[::1], types.uint8[::1], types.int64, types.int64, types.uint8[::1]))
def _block_types(starts, kinds, first, block_size, found):  # type: ignore[no-untyped-def]
    part = 0
    parts = len(starts)
    for i in range(len(found)):
        at = (first + i) * block_size
        end = at + block_size
        while part + 1 < parts and starts[part + 1] <= at:
            part += 1
        best = kinds[part]
        if part + 1 < parts and starts[part + 1] < end:
            # Several parts: sum up each type over the block; its first place decides a tie.
            most = 0
            scan = part
            while scan < parts and starts[scan] < end:
                total = 0
                other = scan
                while other < parts and starts[other] < end:
                    if kinds[other] == kinds[scan]:
                        stop = starts[other + 1] if other + 1 < parts else end
                        total += min(stop, end) - max(starts[other], at)
                    other += 1
                earlier = False
                for before in range(part, scan):
                    if kinds[before] == kinds[scan]:
                        earlier = True
                if not earlier and total > most:
                    most = total
                    best = kinds[scan]
                scan += 1
        found[i] = best


assert len(TokenType) == NUM_TOKEN_TYPES
