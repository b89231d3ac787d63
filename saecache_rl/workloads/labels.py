"""Token types of a request, read off the special tokens of its chat template.

Only token ids count, so that a role marker spelt out in a user's text, which the tokenizer gives ordinary ids, labels
nothing. A marker also counts only where the template puts it: `<think>` within the assistant's turn, a tool's response
outside it. A block has the type of most of its tokens, the earlier on a tie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import NUM_TOKEN_TYPES, TokenType
from saecache_rl.workloads.templates import Mark, Template

Tokens = npt.NDArray[np.integer[Any]]


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

    def begin_part(self, start: int, kind: TokenType) -> None:
        """From token `start` on, which is not before any part's start, tokens are of type `kind`."""
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
                    self.begin_part(begin + at, marker.kind)
            elif marker.mark is Mark.OVER:
                if self.kinds[-1] == marker.kind and self._turn != marker.kind:
                    self.begin_part(begin + at + 1, self._turn)
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
        self.begin_part(at, kind)

    def _sections(self, tokens: Tokens, start: int, end: int, begin: int) -> None:
        """Tool definitions within the system's turn ``tokens[start:end]``."""
        assert self.template is not None
        for ids in self.template.sections:
            for at in (np.flatnonzero(tokens[start:end] == ids[0]) + start).tolist():
                if tuple(tokens[at : at + len(ids)].tolist()) == ids:
                    self.begin_part(begin + at, TokenType.TOOL_DEFINITION)
                    return

    def token_types(self) -> npt.NDArray[np.uint8]:
        """(length,) the type of each token so far."""
        lengths = np.diff([*self.starts, self.length])
        return np.repeat(np.array(self.kinds, np.uint8), lengths)

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
