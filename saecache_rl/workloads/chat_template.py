"""Messages to tokens through a chat template, and what each token is.

The markers, their order and what they delimit are those of the family; long fixed instructions of its members are
not repeated. A prompt is encoded run by run between special tokens, as a server's tokenizer does it, and ends where the
reply begins, so that a request's prompt and reply are a strict prefix of the next prompt, unless the template leaves
earlier reasoning out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.messages import Message
from saecache_rl.workloads.templates import FORMATS, Template, find_template
from saecache_rl.workloads.tokenizing import Tokenizer

SYSTEM, TOOLS, USER = TokenType.SYSTEM, TokenType.TOOL_DEFINITION, TokenType.USER
RESPONSE, OUTPUT, REASONING = TokenType.RESPONSE, TokenType.TOOL_OUTPUT, TokenType.REASONING

_TYPE_OF_ROLE = {
    "system": SYSTEM,
    "user": USER,
    "assistant": RESPONSE,
    "tool": OUTPUT,
    "unknown": TokenType.UNKNOWN,  # where a source tells nothing; only without a template
}


class Piece(NamedTuple):
    """A text, or the text of a marker, of one type."""

    text: str
    kind: TokenType
    marker: bool = False


class Tokens(NamedTuple):
    """Token ids (N,) and their types (N,)."""

    ids: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]


NO_TOKENS = Tokens(np.empty(0, np.int64), np.empty(0, np.uint8))


class Style(NamedTuple):
    """How a family writes a conversation.

    head: of the tools (JSON text or "") and the leading system text (None: there is none).
    turn: of a message.
    opening: what a prompt ends with, after a message of the given role.
    reply: of an assistant's message, without its opening, up to the token that ends it.
    closing: what follows a reply's last sampled token.
    """

    head: Callable[[str, str | None], list[Piece]]
    turn: Callable[[Message], list[Piece]]
    opening: Callable[[str], list[Piece]]
    reply: Callable[[Message], list[Piece]]
    closing: list[Piece]


def _mark(text: str, kind: TokenType) -> Piece:
    return Piece(text, kind, marker=True)


def _thought(message: Message, begin: str, end: str) -> list[Piece]:
    if not message.reasoning:
        return []
    said = [_mark(begin, REASONING), Piece(f"\n{message.reasoning}\n", REASONING), _mark(end, REASONING)]
    return [*said, Piece("\n\n", RESPONSE)]


# --- ChatML: Qwen, Hermes and many others ---


def _chatml_head(tools: str, system: str | None) -> list[Piece]:
    if not tools and system is None:
        return []
    pieces = [_mark("<|im_start|>", SYSTEM), Piece("system\n" + (system or ""), SYSTEM)]
    if tools:
        gap = "\n\n" if system else ""
        pieces += [Piece(gap, SYSTEM), Piece(f"# Tools\n\n<tools>\n{tools}\n</tools>", TOOLS)]
    last = pieces[-1].kind
    return [*pieces, _mark("<|im_end|>", last), Piece("\n", last)]


def _chatml_turn(message: Message) -> list[Piece]:
    if message.role == "tool":
        return [
            _mark("<|im_start|>", USER),
            Piece("user\n", USER),
            _mark("<tool_response>", OUTPUT),
            Piece(f"\n{message.content}\n", OUTPUT),
            _mark("</tool_response>", OUTPUT),
            _mark("<|im_end|>", USER),
            Piece("\n", USER),
        ]
    kind = _TYPE_OF_ROLE[message.role]
    return [
        _mark("<|im_start|>", kind),
        Piece(f"{message.role}\n{message.content}", kind),
        _mark("<|im_end|>", kind),
        Piece("\n", kind),
    ]


def _chatml_reply(message: Message) -> list[Piece]:
    pieces = [*_thought(message, "<think>", "</think>"), Piece(message.content, RESPONSE)]
    for call in message.calls:
        pieces += [_mark("<tool_call>", RESPONSE), Piece(f"\n{call}\n", RESPONSE), _mark("</tool_call>", RESPONSE)]
    return [*pieces, _mark("<|im_end|>", RESPONSE)]


_CHATML = Style(
    head=_chatml_head,
    turn=_chatml_turn,
    opening=lambda _: [_mark("<|im_start|>", RESPONSE), Piece("assistant\n", RESPONSE)],
    reply=_chatml_reply,
    closing=[Piece("\n", RESPONSE)],
)


# --- Llama 3 ---


def _llama_header(role: str, kind: TokenType) -> list[Piece]:
    header = [_mark("<|start_header_id|>", kind), Piece(role, kind), _mark("<|end_header_id|>", kind)]
    return [*header, Piece("\n\n", kind)]


def _llama_head(tools: str, system: str | None) -> list[Piece]:
    begin = _mark("<|begin_of_text|>", TokenType.UNKNOWN)
    if not tools and system is None:
        return [begin]
    pieces = [begin, *_llama_header("system", SYSTEM), Piece(system or "", SYSTEM)]
    if tools:
        gap = "\n\n" if system else ""
        pieces += [Piece(gap, SYSTEM), Piece(f"Environment: ipython\n\n{tools}", TOOLS)]
    return [*pieces, _mark("<|eot_id|>", pieces[-1].kind)]


def _llama_turn(message: Message) -> list[Piece]:
    kind = _TYPE_OF_ROLE[message.role]
    role = "ipython" if message.role == "tool" else message.role
    return [*_llama_header(role, kind), Piece(message.content, kind), _mark("<|eot_id|>", kind)]


def _llama_reply(message: Message) -> list[Piece]:
    pieces = [*_thought(message, "<think>", "</think>"), Piece(message.content, RESPONSE)]
    for call in message.calls:
        pieces += [_mark("<|python_tag|>", RESPONSE), Piece(call, RESPONSE)]
    return [*pieces, _mark("<|eom_id|>" if message.calls else "<|eot_id|>", RESPONSE)]


_LLAMA = Style(_llama_head, _llama_turn, lambda _: _llama_header("assistant", RESPONSE), _llama_reply, [])


# --- Mistral ---


def _mistral_head(tools: str, system: str | None) -> list[Piece]:
    pieces = [_mark("<s>", TokenType.UNKNOWN)]
    if system is not None:
        pieces += _mistral_turn(Message("system", system))
    if tools:
        pieces += [_mark("[AVAILABLE_TOOLS]", TOOLS), Piece(tools, TOOLS), _mark("[/AVAILABLE_TOOLS]", USER)]
    return pieces


def _mistral_turn(message: Message) -> list[Piece]:
    begin, end, kind, after = {
        "system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", SYSTEM, USER),
        "user": ("[INST]", "[/INST]", USER, RESPONSE),
        "tool": ("[TOOL_RESULTS]", "[/TOOL_RESULTS]", OUTPUT, RESPONSE),
    }[message.role]
    return [_mark(begin, kind), Piece(message.content, kind), _mark(end, after)]


def _mistral_reply(message: Message) -> list[Piece]:
    pieces = []
    if message.reasoning:
        pieces += [_mark("[THINK]", REASONING), Piece(message.reasoning, REASONING), _mark("[/THINK]", REASONING)]
    pieces.append(Piece(message.content, RESPONSE))
    for call in message.calls:
        pieces += [_mark("[TOOL_CALLS]", RESPONSE), Piece(call, RESPONSE)]
    return [*pieces, _mark("</s>", RESPONSE)]


_MISTRAL = Style(_mistral_head, _mistral_turn, lambda _: [], _mistral_reply, [])


# --- DeepSeek ---


def _deepseek_head(tools: str, system: str | None) -> list[Piece]:
    pieces = [_mark("<｜begin▁of▁sentence｜>", SYSTEM), Piece(system or "", SYSTEM)]
    if tools:
        pieces += [Piece("\n\n" if system else "", SYSTEM), Piece(f"## Tools\n\n{tools}", TOOLS)]
    return pieces


def _deepseek_turn(message: Message) -> list[Piece]:
    if message.role == "tool":
        begin, end = _mark("<｜tool▁outputs▁begin｜>", OUTPUT), _mark("<｜tool▁outputs▁end｜>", RESPONSE)
        return [begin, Piece(message.content, OUTPUT), end]
    # A system text in the middle has no marker of its own in this family.
    return [_mark("<｜User｜>", USER), Piece(message.content, USER)]


def _deepseek_reply(message: Message) -> list[Piece]:
    pieces = [*_thought(message, "<think>", "</think>"), Piece(message.content, RESPONSE)]
    for call in message.calls:
        begin, end = _mark("<｜tool▁calls▁begin｜>", RESPONSE), _mark("<｜tool▁calls▁end｜>", RESPONSE)
        pieces += [begin, Piece(call, RESPONSE), end]
    return [*pieces, _mark("<｜end▁of▁sentence｜>", RESPONSE)]


_DEEPSEEK = Style(
    head=_deepseek_head,
    turn=_deepseek_turn,
    opening=lambda role: [] if role == "tool" else [_mark("<｜Assistant｜>", RESPONSE)],
    reply=_deepseek_reply,
    closing=[],
)


# --- No template: the texts as they are ---

_NONE = Style(
    head=lambda tools, system: [Piece(tools, TOOLS), Piece(system or "", SYSTEM)],
    turn=lambda message: [Piece(message.content, _TYPE_OF_ROLE[message.role])],
    opening=lambda _: [],
    reply=lambda message: [
        Piece(message.reasoning, REASONING),
        Piece(message.content, RESPONSE),
        *(Piece(call, RESPONSE) for call in message.calls),
    ],
    closing=[],
)

STYLES = {"chatml": _CHATML, "llama3": _LLAMA, "mistral": _MISTRAL, "deepseek": _DEEPSEEK, "none": _NONE}


class ChatTemplate:
    """Writes conversations in one family's way, in one tokenizer's tokens."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        """Take a family of `STYLES`.

        Raises:
            InputError: the tokenizer lacks the family's markers.
        """
        self.name, self.tokenizer, self.style = name, tokenizer, STYLES[name]
        for form in FORMATS:
            if form.name == name and tokenizer.marker(form.needs) is None:
                known = [f.name for f in FORMATS if tokenizer.marker(f.needs) is not None]
                raise InputError(
                    f"workload.template={name}: {tokenizer.name} has no token {form.needs}; choose "
                    f"{' or '.join([*known, 'none'])}"
                )

    def reader(self) -> Template | None:
        """Return the template by which `Labels` reads these tokens; None without one."""
        if self.name == "none":
            return None
        formats = [form for form in FORMATS if form.name == self.name]
        return find_template(self.tokenizer.marker, self.tokenizer.ids, formats)

    def head(self, tools: str, messages: Sequence[Message]) -> tuple[Tokens, int]:
        """Return what stands before the first turn, and how many of the messages are in it."""
        system = messages[0].content if messages and messages[0].role == "system" else None
        return self._encode(self.style.head(tools, system)), int(system is not None)

    def turn(self, message: Message) -> Tokens:
        """Return a message that is no reply."""
        return self._encode(self.style.turn(message))

    def opening(self, role: str) -> Tokens:
        """Return what a prompt ends with, after a message of `role`."""
        return self._encode(self.style.opening(role))

    def reply(self, message: Message) -> Tokens:
        """Return the tokens that are sampled."""
        return self._encode(self.style.reply(message))

    def closing(self) -> Tokens:
        """Return what follows a reply in the next prompt."""
        return self._encode(self.style.closing)

    def _encode(self, pieces: Iterable[Piece]) -> Tokens:
        """Encode run by run between special tokens; a token that spans two pieces is of the first one's type."""
        ids: list[npt.NDArray[np.int64]] = []
        kinds: list[npt.NDArray[np.uint8]] = []
        run: list[Piece] = []

        def flush() -> None:
            text = "".join(piece.text for piece in run)
            if text:
                encoded = self.tokenizer.encode(text)
                ids.append(encoded.ids)
                if len(run) == 1:
                    kinds.append(np.full(len(encoded.ids), int(run[0].kind), np.uint8))
                else:
                    ends = np.cumsum([len(piece.text) for piece in run])
                    of = np.array([int(piece.kind) for piece in run], np.uint8)
                    kinds.append(of[np.searchsorted(ends, encoded.starts, side="right")])
            run.clear()

        for piece in pieces:
            number = self.tokenizer.marker(piece.text) if piece.marker else None
            if number is None:
                run.append(piece)
                continue
            flush()
            ids.append(np.array([number], np.int64))
            kinds.append(np.array([int(piece.kind)], np.uint8))
        flush()
        return Tokens(np.concatenate(ids), np.concatenate(kinds)) if ids else NO_TOKENS


def join(parts: Sequence[Tokens]) -> Tokens:
    """Return tokens one after the other."""
    if not parts:
        return NO_TOKENS
    return Tokens(np.concatenate([p.ids for p in parts]), np.concatenate([p.kinds for p in parts]))
