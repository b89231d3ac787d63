"""Hidden states of a live vLLM, and the predictor on them: in the scheduler's process and in a worker's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.engines.vllm import plugin
from saecache_rl.engines.vllm.continuation import ByFigures, ByHiddenState, check_hidden_size, load_predictor
from saecache_rl.engines.vllm.model import Driven
from saecache_rl.engines.vllm.plugin import PREDICTOR
from saecache_rl.engines.vllm.serving import Choice, Served, Serving
from saecache_rl.errors import InputError
from saecache_rl.predictor.features import FIGURES
from saecache_rl.predictor.network import EMBEDDING, Network, Plan, train_network
from saecache_rl.predictor.trained import Weights
from tests.engines.vllm import support

pytestmark = pytest.mark.live

HIDDEN, BLOCK, BLOCKS, CHUNK = 128, 32, 64, 256
YES, NO = 11, 200  # the last token of a prompt says what the network learns
ENVIRONMENT = {
    **support.ENVIRONMENT,
    "VLLM_LOGGING_LEVEL": "ERROR",
    plugin.AGENT: "saecache_fixed",
}


def prompt(length: int, seed: int, last: int = NO) -> list[int]:
    return [*np.random.default_rng(seed).integers(8, 250, length - 1).tolist(), last]


@pytest.fixture(scope="module")
def model() -> Any:
    """The tiny model as Hugging Face's transformers runs it."""
    from saecache_rl.engines.vllm.tiny_model import tiny_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModel

        return AutoModel.from_pretrained(tiny_model()).eval()


def expected(model: Any, tokens: list[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        states = model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    return np.asarray(states[-1].numpy(), np.float32)


@pytest.fixture(scope="module")
def network(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that says yes to prompts that end with YES, and no to those that end with NO."""
    vectors = np.stack([expected(model, prompt(40 + n, n, (YES, NO)[n % 2])) for n in range(80)])
    labels = np.arange(80) % 2 == 0
    made = train_network(vectors, labels, np.arange(80), Plan(epochs=60))
    assert ((made.predict(vectors) > 0.5) == labels).all()
    path = tmp_path_factory.mktemp("predictor") / "predictor.npz"
    made.save(path, "test")
    return path


class Engine:
    """A vLLM with the plug-in in force and a predictor in its worker."""

    def __init__(self) -> None:
        from vllm import LLM

        from saecache_rl.engines.vllm.tiny_model import tiny_model

        self.llm: Any = LLM(
            model=str(tiny_model()),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK,
            num_gpu_blocks_override=BLOCKS + 1,
            max_model_len=1500,
            max_num_batched_tokens=CHUNK,
            max_num_seqs=4,
            worker_extension_cls="tests.engines.vllm.keeps_vectors.KeepsVectors",
            disable_log_stats=True,
        )

    def serve(self, prompts: list[list[int]], tokens: int = 1) -> tuple[list[int], list[list[np.ndarray]]]:
        """Serve prompts; cached tokens of each, and the vectors that were seen of each, in order."""
        from vllm import SamplingParams

        self.llm.collective_rpc("take_vectors")
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0)
        given: Any = [{"prompt_token_ids": p} for p in prompts]
        outputs = self.llm.generate(given, params, use_tqdm=False)
        seen: dict[str, list[np.ndarray]] = {}
        for name, vector in self.llm.collective_rpc("take_vectors")[0]:
            seen.setdefault(name.split("-")[0], []).append(np.array(vector, np.float32))
        return [int(o.num_cached_tokens) for o in outputs], [seen.get(o.request_id, []) for o in outputs]

    def empty(self) -> None:
        assert self.llm.reset_prefix_cache()

    def close(self) -> None:
        core, self.llm = self.llm.llm_engine.engine_core, None
        core.shutdown()
        if hasattr(core, "ctx"):  # vLLM leaves its ZeroMQ context open, which warns when it is let go of
            core.output_queue_thread.join(10)
            core.ctx.destroy(linger=0)


@pytest.fixture(scope="module", params=["here", "own process"])
def engine(request: pytest.FixtureRequest, network: Path) -> Iterator[Engine]:
    import torch
    from vllm import plugins
    from vllm.v1.core.sched import async_scheduler, scheduler

    from saecache_rl.engines.vllm import hidden

    here = request.param == "here"
    own = scheduler.KVCacheManager, scheduler.Scheduler, async_scheduler.AsyncScheduler
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in {**ENVIRONMENT, PREDICTOR: str(network)}.items():
            patch.setenv(name, value)
        root = str(Path(__file__).parents[3])
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0" if here else "1")
        patch.setattr(torch, "set_num_threads", torch.set_num_threads)  # which vLLM's worker disables
        patch.setattr(plugins, "plugins_loaded", True)  # registered here, so that it is undone below
        plugin.register()
        made = Engine()
        assert (made.llm.collective_rpc("process")[0] == os.getpid()) == here
        yield made
        made.close()
    hidden.uninstall()
    scheduler.KVCacheManager, scheduler.Scheduler, async_scheduler.AsyncScheduler = own


def test_one_vector_a_prompt_equal_to_the_models(engine: Engine, model: Any) -> None:
    engine.empty()
    lengths = (2, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 700, 5, 3 * CHUNK, 1000)
    prompts = [prompt(length, 100 + n) for n, length in enumerate(lengths)]
    _, vectors = engine.serve(prompts, tokens=3)
    for tokens, seen in zip(prompts, vectors, strict=True):
        assert len(seen) == 1  # none of a part of a prompt, none of a generated token
        assert np.abs(seen[0] - expected(model, tokens)).max() < 1e-4


def test_equal_where_the_cache_serves_the_prefix(engine: Engine, model: Any) -> None:
    engine.empty()
    first = prompt(500, 1)
    prompts = [first, first, [*first, *prompt(300, 2)], first[:480], [*first[:320], *prompt(50, 3)]]
    cached = []
    for tokens in prompts:  # one by one, so that each finds what those before it left
        hit, vectors = engine.serve([tokens])
        cached += hit
        assert len(vectors[0]) == 1
        assert np.abs(vectors[0][0] - expected(model, tokens)).max() < 1e-4
    assert cached == [0, 480, 480, 448, 320]


def test_a_preempted_request_shows_its_prompts_end_whatever_it_computes_again(engine: Engine, model: Any) -> None:
    engine.empty()
    prompts = [prompt(300, 300 + n) for n in range(4)]
    # Four prompts of 10 blocks and replies that grow to 9 more each: 76 blocks of 64, so some must wait.
    _, vectors = engine.serve(prompts, tokens=290)
    assert max(len(seen) for seen in vectors) > 1
    for tokens, seen in zip(prompts, vectors, strict=True):
        assert seen
        for vector in seen:
            assert np.abs(vector - expected(model, tokens)).max() < 1e-4


def test_the_prediction_decides_where_a_first_turns_blocks_go(engine: Engine) -> None:
    engine.empty()
    yes, no = prompt(10 * BLOCK + 1, 500, YES), prompt(10 * BLOCK + 1, 501, NO)
    for tokens in (yes, no, *(prompt(10 * BLOCK + 1, 510 + n, NO) for n in range(8))):
        engine.serve([tokens])
    # 64 blocks; 8 later prompts took 80. What goes on lies in another queue than what does not, and outlives it.
    assert engine.serve([yes])[0] == [10 * BLOCK]
    assert engine.serve([no])[0] == [0]


def test_the_first_prediction_of_a_request_stays() -> None:
    played = support.replay(None, 60)
    serving = Serving(Choice(Driven(LRU())), 60, support.BLOCK)
    request = support.make_request(played, "a", list(range(40)))
    served = serving.begin(request)
    serving.predicted({"a": 0.75, "unknown": 0.5})
    serving.predicted({"a": 0.25})
    assert served.continues == 0.75
    assert ByHiddenState()(served) == 0.75


def _served(**facts: Any) -> Served:
    values = {"turn": 0, "prompt_tokens": 100, "output_tokens": 3, "ended_for_tool": False, "agentic": False}
    values |= {"gap_seconds": float("nan"), **facts}
    made: Any = SimpleNamespace(
        facts=SimpleNamespace(**values), labels=SimpleNamespace(has_tools=False), continues=None
    )
    return made


def test_without_a_prediction_no_and_counted() -> None:
    predictor = ByHiddenState()
    assert predictor(_served()) == 0.0
    assert predictor.missing == 1
    assert predictor(_served(output_tokens=0)) == 0.0  # aborted before its first token
    assert predictor.missing == 1


def test_figures_of_a_live_request_are_those_of_the_simulation() -> None:
    weights = np.zeros(len(FIGURES))
    weights[FIGURES.index("first_turn")] = -1.0
    weights[FIGURES.index("ended_for_tool")] = 3.0
    weights[FIGURES.index("ln_past_gap")] = 1.0
    predictor = ByFigures(Weights(weights, np.zeros(0)))
    assert predictor(_served()) == pytest.approx(1 / (1 + np.exp(1)))
    assert predictor(_served(ended_for_tool=True)) == pytest.approx(1 / (1 + np.exp(-2)))
    gone = predictor(_served(turn=2, gap_seconds=np.e - 1))
    assert gone == pytest.approx(1 / (1 + np.exp(-0.1)))


def network_of(inputs: int, sees: str = "hidden") -> Network:
    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    return Network(
        (zeros(256, inputs), zeros(64, 256), zeros(2, 64)), (zeros(256), zeros(64), zeros(2)), sees, "somebody's model"
    )


def test_what_a_live_engine_cannot_use_is_refused_in_one_line(tmp_path: Path) -> None:
    from saecache_rl.engines.vllm.hidden import attach

    path = tmp_path / "p.npz"
    with pytest.raises(InputError, match=rf"{PREDICTOR}=.*no such file.*train_predictor"):
        load_predictor(str(path))
    Weights(np.zeros(len(FIGURES)), np.zeros(8)).save(path, "x")
    with pytest.raises(InputError, match=r"looks at words.*text_buckets=0"):
        load_predictor(str(path))
    network_of(384, EMBEDDING).save(path, "x")
    with pytest.raises(InputError, match="looks at embeddings"):
        load_predictor(str(path))
    config = SimpleNamespace(get_hidden_size=lambda: 128, runner_type="generate", model="m")
    with pytest.raises(InputError, match=r"of 64 numbers, those of m have 128.*model=m"):
        check_hidden_size(network_of(64), config, "p.npz")
    worker = SimpleNamespace(model_config=config, model_runner=SimpleNamespace(device="cpu"))
    with pytest.raises(InputError, match="SimpleNamespace shows no hidden states"):
        attach(worker, network_of(128), "p.npz")
    runner = SimpleNamespace(device="cpu", sample_tokens=lambda _: None, execute_model_state=None)
    worker = SimpleNamespace(model_config=config, model_runner=runner)
    with pytest.raises(InputError, match=r"neither vLLM 0\.32's V1 nor its V2"):
        attach(worker, network_of(128), "p.npz")
