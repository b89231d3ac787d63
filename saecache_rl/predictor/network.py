"""SAECache's predictor: a small network on the served model's hidden state (arXiv 2605.18825, section 4).

Linear(h, 256) - ReLU - Dropout(0.3) - Linear(256, 64) - ReLU - Dropout(0.2) - Linear(64, 2), the second output being
"goes on". Training needs torch, which is imported when it begins; what was trained is plain arrays, and predicts with
NumPy or with whatever the engine's device is (`saecache_rl.engines.vllm.hidden`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from saecache_rl.errors import InputError
from saecache_rl.predictor import stored

Floats = npt.NDArray[np.float32]
Reals = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

WIDTHS = (256, 64, 2)
DROPOUT = (0.3, 0.2)
#: Header of a file of this kind.
KIND = "network"
#: What the network may look at.
HIDDEN, EMBEDDING = "hidden", "embedding"

_BATCH = 64
_DECAY = 1e-2  # AdamW's weight decay
_HELD = 0.15  # of the groups, to choose the epoch by
_PATIENCE = 8  # epochs without a better one
TORCH = "pip install 'saecache-rl[torch]'"


@dataclass(frozen=True)
class Network:
    """The trained layers.

    Attributes:
        weights: of each layer, (outputs, inputs), float32.
        biases: of each layer, (outputs,), float32.
        sees: `HIDDEN` or `EMBEDDING`.
        model: the model whose vectors it was trained on, by name; for people.
    """

    weights: tuple[Floats, Floats, Floats]
    biases: tuple[Floats, Floats, Floats]
    sees: str = HIDDEN
    model: str = ""

    @property
    def inputs(self) -> int:
        """h, the length of the vectors that it looks at."""
        return int(self.weights[0].shape[1])

    @property
    def parameters(self) -> int:
        """Numbers in all layers: 1,065,410 where h is 4096 (paper)."""
        return sum(a.size for a in (*self.weights, *self.biases))

    def predict(self, vectors: Floats) -> Reals:
        """Return (n,) probabilities for (n, h) vectors.

        Raises:
            ValueError: the vectors have another length.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.inputs:
            raise ValueError(f"vectors of shape {vectors.shape}, expected (n, {self.inputs})")
        x = np.asarray(vectors, np.float32)
        for n, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ weight.T + bias
            if n < len(WIDTHS) - 1:
                x = np.maximum(x, np.float32(0))
        # Softmax over two outputs, the second of which is yes.
        return np.asarray(expit(x[:, 1].astype(np.float64) - x[:, 0]), np.float64)

    def save(self, path: Path, workload: str) -> None:
        """Write the network, whole or not at all."""
        arrays = {f"weight{n}": w for n, w in enumerate(self.weights)}
        arrays |= {f"bias{n}": b for n, b in enumerate(self.biases)}
        header = {"kind": KIND, "sees": self.sees, "model": self.model, "workload": workload}
        stored.write(path, header, arrays)

    @staticmethod
    def of(header: dict[str, Any], arrays: stored.Arrays, path: Path, option: str) -> Network:
        """Take what `stored.read` found.

        Raises:
            InputError: it is no network of these widths.
        """
        try:
            weights = [np.ascontiguousarray(arrays[f"weight{n}"], np.float32) for n in range(3)]
            biases = [np.ascontiguousarray(arrays[f"bias{n}"], np.float32) for n in range(3)]
            shapes = [(WIDTHS[0], weights[0].shape[1]), (WIDTHS[1], WIDTHS[0]), (WIDTHS[2], WIDTHS[1])]
        except (KeyError, ValueError, IndexError):
            raise stored.damaged(path, option) from None
        good = [w.shape for w in weights] == shapes and [b.shape for b in biases] == [(n,) for n in WIDTHS]
        good = good and all(np.isfinite(a).all() for a in (*weights, *biases))
        if not good or header.get("sees") not in (HIDDEN, EMBEDDING):
            raise stored.damaged(path, option)
        return Network(
            (weights[0], weights[1], weights[2]),
            (biases[0], biases[1], biases[2]),
            str(header["sees"]),
            str(header.get("model", "")),
        )


class Plan(NamedTuple):
    """How a network is trained: at most so many epochs, AdamW's step, and the seed of all draws."""

    epochs: int = 30
    step: float = 1e-3
    seed: int = 0


def need_torch() -> Any:
    """Import torch.

    Raises:
        InputError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise InputError(
            f"a predictor on hidden states is trained with torch, which is not installed: {TORCH}"
        ) from None
    return torch


def train_network(
    vectors: Floats, labels: Mask, groups: npt.NDArray[np.integer[Any]], plan: Plan, sees: str = HIDDEN, model: str = ""
) -> Network:
    """Train on (N, h) vectors, of which (N,) `labels` say what happened.

    Inputs are brought to mean 0 and deviation 1, which is then folded into the first layer. Part of the groups is held
    out to stop by: the epoch with the least log loss on it is kept.

    Args:
        vectors, labels: the examples; both outcomes are among them.
        groups: (N,) what must not be on both sides, sessions.
        plan: of the training. The same plan on the same examples gives the same network to the bit, on one machine.
        sees, model: of `Network`.

    Raises:
        InputError: torch is not installed.
    """
    torch = need_torch()
    random = np.random.default_rng(plan.seed)
    mean, deviation = vectors.mean(axis=0), np.maximum(vectors.std(axis=0), 1e-6)
    held = _held_out(groups, labels, random)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        torch.set_num_threads(1)  # sums of several threads depend on their number
        try:
            scaled = torch.from_numpy(np.ascontiguousarray((vectors - mean) / deviation, np.float32))
            layers = _fit(torch, scaled, torch.from_numpy(labels.astype(np.int64)), held, random, plan)
        finally:
            torch.set_num_threads(threads)
    weights, biases = layers[0::2], layers[1::2]
    weights[0] = weights[0] / deviation
    biases[0] = biases[0] - weights[0] @ mean
    kept = [np.ascontiguousarray(a, np.float32) for a in (*weights, *biases)]
    return Network((kept[0], kept[1], kept[2]), (kept[3], kept[4], kept[5]), sees, model)


def _held_out(groups: npt.NDArray[np.integer[Any]], labels: Mask, random: np.random.Generator) -> Mask:
    """Return (N,) which examples the epoch is chosen by; none where a side would lack an outcome."""
    names, which = np.unique(groups, return_inverse=True)
    held: Mask = (random.random(len(names)) < _HELD)[which.reshape(-1)]
    for side in (labels[held], labels[~held]):
        if not side.any() or side.all():
            return np.zeros(len(labels), bool)
    return held


def _fit(torch: Any, x: Any, y: Any, held: Mask, random: np.random.Generator, plan: Plan) -> list[Reals]:
    """Return weights and biases, one layer after the other."""
    nn = torch.nn
    parts: list[Any] = []
    inputs = x.shape[1]
    for width, dropout in zip(WIDTHS, (*DROPOUT, None), strict=True):
        parts.append(nn.Linear(inputs, width))
        if dropout is not None:
            parts += [nn.ReLU(), nn.Dropout(dropout)]
        inputs = width
    network = nn.Sequential(*parts)
    optimiser = torch.optim.AdamW(network.parameters(), lr=plan.step, weight_decay=_DECAY)
    loss = nn.CrossEntropyLoss()
    learned, watched = np.flatnonzero(~held), torch.from_numpy(np.flatnonzero(held))

    def state() -> list[Reals]:
        return [p.detach().numpy().astype(np.float64) for p in network.parameters()]

    best, least, since = state(), np.inf, 0
    for _ in range(plan.epochs):
        network.train()
        for batch in np.array_split(random.permutation(learned), max(len(learned) // _BATCH, 1)):
            optimiser.zero_grad()
            chosen = torch.from_numpy(batch)
            loss(network(x[chosen]), y[chosen]).backward()
            optimiser.step()
        if not len(watched):
            best = state()
            continue
        network.eval()
        with torch.no_grad():
            now = float(loss(network(x[watched]), y[watched]))
        since += 1
        if now < least:
            best, least, since = state(), now, 0
        if since >= _PATIENCE:
            break
    return best
