"""A predictor that `train_predictor` made, fixed from then on: a logistic regression on figures and hashed words, or a
network on hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from saecache_rl.errors import InputError
from saecache_rl.predictor import stored
from saecache_rl.predictor.base import Predictor
from saecache_rl.predictor.features import FIGURES, WordColumns, figures
from saecache_rl.predictor.network import KIND, Network
from saecache_rl.predictor.vectors import Vectors
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """figures: (F,) of `FIGURES`. words: (buckets,), of length 0 where no words are looked at."""

    figures: Reals
    words: Reals

    def predict(self, trace: Trace, sessions: Sessions) -> Reals:
        """Return (R,) probabilities.

        Raises:
            InputError: words are looked at, and the trace has none.
        """
        score = figures(trace, sessions) @ self.figures
        if len(self.words):
            score = score + WordColumns(trace, len(self.words)).times(self.words)
        return np.asarray(expit(score), np.float64)

    def save(self, path: Path, workload: str) -> None:
        """Write the weights, whole or not at all."""
        header = {"figures": FIGURES, "workload": workload}
        stored.write(path, header, {"figures": self.figures, "words": self.words})

    @staticmethod
    def of(header: dict[str, Any], arrays: stored.Arrays, path: Path, option: str) -> Weights:
        """Take what `stored.read` found.

        Raises:
            InputError: it is of other figures.
        """
        if not {"figures", "words"} <= set(arrays):
            raise stored.damaged(path, option)
        weights = Weights(arrays["figures"].astype(np.float64), arrays["words"].astype(np.float64))
        good = tuple(header.get("figures", ())) == FIGURES
        good = good and weights.figures.shape == (len(FIGURES),) and weights.words.ndim == 1
        if not good or not np.isfinite(weights.figures).all() or not np.isfinite(weights.words).all():
            raise stored.damaged(path, option)
        return weights


def load(path: Path, option: str = "predictor.path") -> Weights | Network:
    """Read a trained predictor, of whichever kind.

    Args:
        path: predictor.npz.
        option: that names it, for messages.

    Raises:
        InputError: the file is absent, or no trained predictor of this version.
    """
    header, arrays = stored.read(path, option)
    if header.get("kind") == KIND:
        return Network.of(header, arrays, path, option)
    return Weights.of(header, arrays, path, option)


class Trained(Predictor):
    """Predicts by what a file says; it learns nothing more."""

    name = "trained"

    def __init__(self, path: str | None = None, vectors: str | None = None) -> None:
        """Read the file.

        Args:
            path: predictor.npz.
            vectors: vectors.npz, the hidden states of the requests that will be served; for a network alone, since a
                simulation has no model.

        Raises:
            InputError: one of them is absent or not what it should be.
        """
        if path is None or not str(path).strip():
            raise InputError(f"predictor.path={path}: missing; {stored.REMEDY}")
        self.trained = load(Path(str(path)).expanduser())
        self.vectors: Vectors | None = None
        if not isinstance(self.trained, Network):
            if vectors is not None:
                raise InputError(f"predictor.vectors={vectors}: {path} does not look at hidden states; leave it out")
            return
        if vectors is None:
            raise InputError(
                f"predictor.path={path}: looks at a model's hidden states, which a simulation does not compute; give "
                "those of this workload: predictor.vectors=vectors.npz, left by train_predictor beside predictor.npz"
            )
        self.vectors = Vectors.load(Path(str(vectors)).expanduser(), "predictor.vectors")
        self.vectors.check(self.trained)

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return the probabilities; each rests on its own request and those before it.

        Raises:
            InputError: the trace lacks what is looked at.
        """
        if isinstance(self.trained, Network):
            assert self.vectors is not None
            return self.trained.predict(self.vectors.of_trace(trace))
        return self.trained.predict(trace, sessions)
