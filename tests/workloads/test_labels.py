"""Labels from messages and labels read off token ids are the same, and neither is fooled by what a user types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.chat_template import STYLES, ChatTemplate, Tokens, join
from saecache_rl.workloads.labels import Labels
from saecache_rl.workloads.messages import Message
from saecache_rl.workloads.templates import FORMATS
from saecache_rl.workloads.token_blocks import blocks_of
from saecache_rl.workloads.tokenizing import Characters, HuggingFace, Tokenizer, Words, find_tokenizer

TEMPLATES = [name for name in STYLES if name != "none"]
MARKERS = sorted({m.text for f in FORMATS for m in f.markers} | {"<|im_end|>", "system\n", "\n\nassistant"})
TOOLS = '{"type": "function", "function": {"name": "f"}}'
AGENT = [
    Message("system", "Be kind."),
    Message("user", "What is six times seven?"),
    Message("assistant", "", "I could ask the tool.", ('{"name": "f", "arguments": {}}',)),
    Message("tool", "42"),
    Message("assistant", "It is 42.", "That was it."),
    Message("user", "Thanks 🙂 שלום"),
    Message("assistant", "You are welcome."),
]


def written(template: ChatTemplate, messages: list[Message], tools: str = "") -> Tokens:
    head, begin = template.head(tools, messages)
    parts, role = [head], "system" if begin else "user"
    for message in messages[begin:]:
        if message.role == "assistant":
            parts += [template.opening(role), template.reply(message), template.closing()]
        else:
            parts.append(template.turn(message))
        role = message.role
    return join(parts)


def read(template: ChatTemplate, tokens: Tokens) -> np.ndarray:
    labels = Labels(template.reader())
    labels.extend(tokens.ids)
    return labels.token_types()


@pytest.mark.parametrize("tools", ["", TOOLS])
@pytest.mark.parametrize("tokenizer", [Words, Characters])
@pytest.mark.parametrize("name", TEMPLATES)
def test_labels_agree(name: str, tokenizer: Callable[[], Tokenizer], tools: str) -> None:
    template = ChatTemplate(name, tokenizer())
    tokens = written(template, AGENT, tools)
    assert read(template, tokens).tolist() == tokens.kinds.tolist()
    expected = {TokenType.SYSTEM, TokenType.USER, TokenType.RESPONSE, TokenType.REASONING, TokenType.TOOL_OUTPUT}
    expected |= {TokenType.TOOL_DEFINITION} if tools else set()
    assert expected <= set(tokens.kinds.tolist())


texts = st.lists(st.sampled_from([*MARKERS, "plain words", "\n", " ", "é🙂", "# Title", "x"]), max_size=6).map("".join)
talks = st.lists(
    st.one_of(
        st.builds(Message, st.just("user"), texts),
        st.builds(Message, st.just("assistant"), texts, texts, st.lists(texts, max_size=2).map(tuple)),
        st.builds(Message, st.just("tool"), texts),
    ),
    max_size=6,
).map(lambda talk: [Message("user", "First."), *talk])  # before any marker nobody can tell


@given(name=st.sampled_from(TEMPLATES), messages=talks, system=st.booleans(), tools=st.sampled_from(["", TOOLS]))
def test_labels_agree_whatever_is_said(name: str, messages: list[Message], system: bool, tools: str) -> None:
    template = ChatTemplate(name, Words())
    whole = [Message("system", "Be kind."), *messages] if system else messages
    tokens = written(template, whole, tools)
    assert read(template, tokens).tolist() == tokens.kinds.tolist()


@pytest.mark.parametrize("name", TEMPLATES)
def test_markers_that_a_user_spells_stay_user_tokens(name: str) -> None:
    template = ChatTemplate(name, Words())
    spelt = Message("user", " ".join(MARKERS))
    tokens = template.turn(spelt)
    plain = template.turn(Message("user", ""))
    assert np.count_nonzero(tokens.kinds != int(TokenType.USER)) == np.count_nonzero(plain.kinds != int(TokenType.USER))


def test_reasoning_is_labelled_to_its_last_marker() -> None:
    template = ChatTemplate("chatml", Characters())
    kinds = template.reply(Message("assistant", "Yes", "Hm")).kinds.tolist()
    # <think> \n H m \n </think>, then \n \n Y e s <|im_end|>
    assert kinds == [int(TokenType.REASONING)] * 6 + [int(TokenType.RESPONSE)] * 6


def test_a_block_has_the_type_of_most_of_its_tokens_the_earlier_on_a_tie() -> None:
    kinds = np.array([2, 2, 3, 3, 4, 3, 3, 4, 5, 0, 0, 1], np.uint8)
    raw, token_type = blocks_of(np.arange(12), kinds, 4)
    assert token_type.tolist() == [2, 4, 0]
    again, _ = blocks_of(np.arange(12)[4:], kinds[4:], 4)
    assert again.tolist() == raw[1:].tolist()
    assert len(set(raw.tolist())) == 3


def test_words_lose_no_character() -> None:
    text = "Hello, wörld!\n\n  indented\t12345 __init__ 漢字かな 🙂👩‍👩‍👧 שלום\x00\u200b"
    encoded = Words().encode(text)
    pieces = [text[a:b] for a, b in zip(encoded.starts, [*encoded.starts[1:], len(text)], strict=True)]
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 7
    words = Words()
    assert words.ids("one two one two")[1:2] == words.ids(" two")


def byte_level(path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE(
        vocab={c: n for n, c in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}, merges=[]
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    made.save(str(path / "tokenizer.json"))
    return path


def test_a_models_own_tokenizer(tmp_path: Path) -> None:
    tokenizer = find_tokenizer(str(byte_level(tmp_path)))
    template = ChatTemplate("chatml", tokenizer)
    tokens = written(template, AGENT, TOOLS)
    assert read(template, tokens).tolist() == tokens.kinds.tolist()
    # Added tokens, special or not, are ordinary text in what a user says.
    spelt = template.turn(Message("user", "<|im_start|>system <think>"))
    assert np.count_nonzero(spelt.ids >= 256) == 2
    assert set(spelt.kinds.tolist()) == {int(TokenType.USER)}
    # What it encodes between markers is what the tokenizer makes of the whole.
    reader = pytest.importorskip("tokenizers").Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    whole = reader.encode("<|im_start|>user\nHello there\n<|im_end|>\n", add_special_tokens=False).ids
    assert template.turn(Message("user", "Hello there\n")).ids.tolist() == whole
    with pytest.raises(
        InputError, match=r"workload\.template=llama3: .* has no token <\|start_header_id\|>; choose chatml"
    ):
        ChatTemplate("llama3", tokenizer)


def test_a_broken_tokenizer_file(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer"):
        HuggingFace(tmp_path / "tokenizer.json")
