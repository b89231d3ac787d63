"""The network on hidden states: its shape, its training, its file, and vectors that belong to a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saecache_rl.engines.vllm.needs import INSTALL as VLLM
from saecache_rl.engines.vllm.tiny_model import make_tiny_model
from saecache_rl.errors import InputError
from saecache_rl.predictor.fitting import score
from saecache_rl.predictor.network import DROPOUT, EMBEDDING, WIDTHS, Network, Plan, train_network
from saecache_rl.predictor.trained import Trained, load
from saecache_rl.predictor.vectors import Vectors
from saecache_rl.workloads.sessions import hint
from tests.commands.support import QUIET, run, succeed
from tests.support import tiny_trace
from tests.workloads.samples import lines, said

INSTALL = "needs torch: pip install 'saecache-rl[torch]'"


def drawn(inputs: int, seed: int = 0, sees: str = "hidden") -> Network:
    random = np.random.default_rng(seed)

    def layer(*shape: int) -> Any:
        return random.normal(0, 0.3, shape).astype(np.float32)

    a, b, c = WIDTHS
    return Network((layer(a, inputs), layer(b, a), layer(c, b)), (layer(a), layer(b), layer(c)), sees, "model")


def examples(count: int = 400, inputs: int = 16) -> tuple[Any, Any, Any]:
    """Vectors whose first two numbers have the same sign in half of the cases: no linear rule tells them."""
    random = np.random.default_rng(1)
    vectors = random.normal(0, 1, (count, inputs)).astype(np.float32)
    vectors[:, 0] *= 40  # scales differ
    return vectors, vectors[:, 0] * vectors[:, 1] > 0, np.arange(count) // 4


def test_the_papers_network_has_its_parameters() -> None:
    # (4096 + 1) x 256 + (256 + 1) x 64 + (64 + 1) x 2
    assert drawn(4096).parameters == 1_065_410
    assert DROPOUT == (0.3, 0.2)


def test_probabilities_by_hand() -> None:
    network = drawn(3)
    x = np.array([[0.5, -1.0, 2.0]], np.float32)
    first = np.maximum(network.weights[0] @ x[0] + network.biases[0], 0)
    second = np.maximum(network.weights[1] @ first + network.biases[1], 0)
    no, yes = network.weights[2] @ second + network.biases[2]
    expected = np.exp(yes) / (np.exp(no) + np.exp(yes))
    assert network.predict(x) == pytest.approx([expected], rel=1e-5)
    with pytest.raises(ValueError, match=r"\(1, 4\), expected \(n, 3\)"):
        network.predict(np.zeros((1, 4), np.float32))


def test_a_file_gives_the_same_network(tmp_path: Path) -> None:
    network = drawn(5)
    network.save(tmp_path / "p.npz", "w")
    again = load(tmp_path / "p.npz")
    assert isinstance(again, Network)
    assert (again.sees, again.model, again.inputs) == ("hidden", "model", 5)
    x = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    assert again.predict(x).tobytes() == network.predict(x).tobytes()


@pytest.mark.parametrize("change", ["shape", "nan", "missing", "sees"])
def test_a_damaged_file_is_refused(tmp_path: Path, change: str) -> None:
    network = drawn(5)
    weights = list(network.weights)
    if change == "shape":
        weights[1] = weights[1][:-1]
    elif change == "nan":
        weights[0] = np.full_like(weights[0], np.nan)
    Network((weights[0], weights[1], weights[2]), network.biases, "x" if change == "sees" else "hidden").save(
        tmp_path / "p.npz", "w"
    )
    if change == "missing":
        with np.load(tmp_path / "p.npz") as data:
            np.savez(tmp_path / "p.npz", **{k: data[k] for k in data.files if k != "bias2"})
    with pytest.raises(InputError, match=r"predictor\.path=.*made by another version, or damaged"):
        load(tmp_path / "p.npz")


def test_a_simulation_takes_vectors_of_its_own_requests_alone(tmp_path: Path) -> None:
    trace = tiny_trace(requests=60)
    sessions = hint(trace)
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    network, place, vectors = drawn(8), str(tmp_path / "p.npz"), str(tmp_path / "v.npz")
    network.save(Path(place), "w")
    Vectors(rows, trace.digest, "model").save(Path(vectors))
    assert Trained(place, vectors).continues(trace, sessions).tobytes() == network.predict(rows).tobytes()
    with pytest.raises(InputError, match=r"made for other requests.*workload\.tokenizer="):
        Trained(place, vectors).continues(tiny_trace(1, 60), sessions)
    with pytest.raises(InputError, match=r"hidden states, which a simulation does not compute.*predictor\.vectors="):
        Trained(place)
    with pytest.raises(InputError, match="holds no vectors"):
        Trained(place, place)
    drawn(9).save(Path(place), "w")
    with pytest.raises(InputError, match="8 numbers a request, of model; the predictor was trained on 9"):
        Trained(place, vectors)


@pytest.mark.rl
class TestTraining:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason=INSTALL)

    def test_it_learns_what_no_linear_rule_tells(self) -> None:
        vectors, labels, groups = examples(1200)
        network = train_network(vectors[:900], labels[:900], groups[:900], Plan(epochs=60))
        assert score(network.predict(vectors[900:]), labels[900:]).mcc > 0.7

    def test_the_same_seed_gives_the_same_bits(self, torch: Any) -> None:
        vectors, labels, groups = examples()
        threads = torch.get_num_threads()
        torch.set_num_threads(2)  # does nothing once a vLLM has begun in this process
        wanted = torch.get_num_threads()
        made = []
        for seed in (0, 0, 1):
            torch.rand(1)  # whoever else draws changes nothing
            state = torch.random.get_rng_state()
            made.append(train_network(vectors, labels, groups, Plan(3, seed=seed)))
            # Neither torch's own draws nor its threads are touched.
            assert torch.equal(torch.random.get_rng_state(), state)
            assert torch.get_num_threads() == wanted
        torch.set_num_threads(threads)
        first, again, other = made
        for a, b in zip((*first.weights, *first.biases), (*again.weights, *again.biases), strict=True):
            assert a.tobytes() == b.tobytes()
        assert first.weights[0].tobytes() != other.weights[0].tobytes()

    def test_it_is_the_network_of_the_paper_as_torch_computes_it(self, torch: Any) -> None:
        vectors, labels, groups = examples()
        network = train_network(vectors, labels, groups, Plan(2))
        x: Any = torch.from_numpy(vectors)
        for n, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
            x = torch.nn.functional.linear(x, torch.from_numpy(weight), torch.from_numpy(bias))
            x = torch.relu(x) if n < 2 else x
        assert network.predict(vectors) == pytest.approx(torch.softmax(x, 1)[:, 1].numpy(), abs=1e-5)

    def test_on_torch_as_on_numpy(self, torch: Any) -> None:
        from saecache_rl.predictor.head import Head

        network = drawn(12)
        x = np.random.default_rng(2).normal(size=(9, 12)).astype(np.float32)
        assert Head(network, "cpu")(torch.from_numpy(x)).numpy() == pytest.approx(network.predict(x), abs=1e-5)
        assert Head(network, "cpu")(torch.from_numpy(x).to(torch.bfloat16)).dtype == torch.float32

    def test_the_epoch_is_chosen_on_whole_sessions_held_out(self) -> None:
        """Noise can't be learned: what is kept is an early epoch, whose predictions stay near the base rate."""
        random = np.random.default_rng(0)
        vectors = random.normal(0, 1, (400, 64)).astype(np.float32)
        labels = random.random(400) < 0.3
        predicted = train_network(vectors, labels, np.arange(400), Plan(epochs=60)).predict(vectors)
        assert np.abs(predicted - 0.3).max() < 0.45
        assert score(predicted, labels).log_loss > 0.3

    def test_one_outcome_on_a_side_is_no_reason_to_stop(self) -> None:
        vectors, labels, groups = examples(60)
        labels = np.zeros(60, bool)
        labels[0] = True
        network = train_network(vectors, labels, groups, Plan(epochs=2), EMBEDDING)
        assert np.isfinite(network.predict(vectors)).all()
        assert network.sees == EMBEDDING


@pytest.mark.live
def test_the_command_on_a_models_hidden_states_and_a_run_with_its_result(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason=f"needs vLLM: {VLLM}", exc_type=ImportError)
    model = str(make_tiny_model(tmp_path / "model", hidden_size=64, layers=1))
    talks = []
    for n in range(90):
        said_by_user = ["more"] * (n % 4) + ["thanks"]
        talks.append(
            {"conversation_id": n, "conversation": said(*(t for text in said_by_user for t in (text, "well")))}
        )
    (tmp_path / "talks.jsonl").write_text(lines(*talks), encoding="utf-8")
    workload = [
        "+workload=lmsys",
        "workload.path=talks.jsonl",
        "workload.arrivals=poisson",
        "workload.session_rate=0.02",
    ]
    told = ["features=hidden", f"model={model}", "epochs=10"]
    folder = succeed("train_predictor", [*workload, *told, "hydra.run.dir=made"], tmp_path)
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["model"] == "model"
    ours = scores["splits"]["by session"]["scores"]
    assert list(ours)[:5] == ["base rate", "turn count", "request figures", "figures and words", "hidden states"]
    assert ("embedding of the latest text" in ours) != ("embedding of the latest text" in scores["left_out"])
    # The last word said decides, which the hidden state holds and the turn count does not.
    assert ours["hidden states"]["log_loss"] < ours["turn count"]["log_loss"]
    made = load(folder / "predictor.npz")
    assert isinstance(made, Network)
    assert made.inputs == 64
    trained = ["predictor=trained", f"predictor.path={folder}/predictor.npz", f"predictor.vectors={folder}/vectors.npz"]
    ran = succeed("train", [*workload, f"workload.tokenizer={model}", *trained, *QUIET, "hydra.run.dir=ran"], tmp_path)
    assert json.loads((ran / "summary.json").read_text())["predictor"] == "trained"
    code, _, error = run("train", [*workload, *trained, *QUIET], tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "made for other requests" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["+workload=balanced", "features=hiden"], "features=hiden: unknown; did you mean 'hidden'"),
        (
            ["+workload=balanced", "features=hidden"],
            "features=hidden needs the model that will be served: model=FOLDER",
        ),
        (["+workload=balanced", "features=hidden", "model=nowhere"], "model=nowhere: no config.json in it"),
        (["+workload=balanced", "model=nowhere"], "model=nowhere: is used with features=hidden alone"),
        (["+workload=balanced", "features=hidden", "model=m"], "balanced has no texts that a model could read"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "m").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "m" / name).write_text("{}")
    code, _, error = run("train_predictor", [*arguments, "workload.requests=50"], tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert says in error
