"""A tiny Qwen2 with random weights and a ChatML tokenizer, made here: what tests and `engine=vllm_cpu_tiny` serve.

Nothing is downloaded. The tokenizer's ordinary tokens are the 256 bytes, so it knows every text; its special tokens and
its chat template are Qwen's, tools included. The model says nothing of sense: it costs what a model costs.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.errors import InputError

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
VOCABULARY = 4096
LONGEST = 65536
#: Spread of the weights: wide enough that the likeliest token is no matter of rounding.
SPREAD = 0.05

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message['content'] + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message['role'] == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message['content'] or '') }}
{%- for call in message['tool_calls'] or [] %}
{%- set function = call['function'] %}
{{- '<tool_call>\\n{"name": "' + function['name'] + '", "arguments": ' + (function['arguments'] | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message['role'] != 'system' or not loop.first %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tiny_model(
    folder: Path, seed: int = 0, hidden_size: int = 128, layers: int = 2, vocabulary: int = VOCABULARY
) -> Path:
    """Write the model and its tokenizer to `folder`, which must not exist or be empty, and return it.

    Args:
        folder: a new one.
        seed: of the weights.
        hidden_size, layers: of the model; heads have 32 dimensions.
        vocabulary: number of token ids; those above the tokenizer's own mean nothing.

    Raises:
        InputError: the folder is in use, a number can't be, or transformers is not installed (it comes with vLLM).
    """
    need_vllm()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; give the name of a new folder")
    if hidden_size < 64 or hidden_size % 64 or layers < 1 or vocabulary < 256 + len(SPECIAL):
        raise InputError(
            f"hidden {hidden_size}, layers {layers}, vocabulary {vocabulary}: hidden is a multiple of 64, there is at "
            f"least one layer, and the vocabulary has at least {256 + len(SPECIAL)} tokens"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    _write_model(folder, seed, hidden_size, layers, vocabulary)
    return folder


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(folder)


def _write_model(folder: Path, seed: int, hidden_size: int, layers: int, vocabulary: int) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    end, pad = 256 + SPECIAL.index("<|im_end|>"), 256 + SPECIAL.index("<|endoftext|>")
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=max(hidden_size // 64, 1),
        max_position_embeddings=LONGEST,
        initializer_range=SPREAD,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).to(torch.float32).eval()
    model.save_pretrained(folder)
    # Greedy unless asked otherwise.
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": end, "pad_token_id": pad}) + "\n", encoding="utf-8"
    )


def tiny_model(seed: int = 0) -> Path:
    """The model of this seed in the user's cache (XDG_CACHE_HOME, else ~/.cache), made if it is not there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saecache_rl"
    folder = base / f"tiny-qwen2-1-{seed}"
    if (folder / "config.json").is_file():
        return folder
    base.mkdir(parents=True, exist_ok=True)
    # Made beside and moved, so that another process never sees half of it.
    partial = Path(tempfile.mkdtemp(prefix="tiny-", dir=base))
    try:
        make_tiny_model(partial, seed)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
