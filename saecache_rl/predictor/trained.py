"""A predictor that `train_predictor` made: a logistic regression on figures and hashed words, fixed from then on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from saecache_rl.errors import InputError
from saecache_rl.predictor.base import Predictor
from saecache_rl.predictor.features import FIGURES, WordColumns, figures
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

Reals = npt.NDArray[np.float64]
FORMAT = 1
_REMEDY = "python -m saecache_rl.train_predictor +workload=W leaves one as predictor.npz in its run's folder"


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
        header = json.dumps({"format": FORMAT, "figures": FIGURES, "workload": workload})
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            np.savez(file, header=np.array(header), figures=self.figures, words=self.words)
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Weights:
        """Read what `save` wrote.

        Raises:
            InputError: the file is absent, or no trained predictor of this version.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                header = json.loads(str(data["header"]))
                weights = Weights(data["figures"].astype(np.float64), data["words"].astype(np.float64))
        except FileNotFoundError:
            raise InputError(f"predictor.path={path}: no such file; {_REMEDY}") from None
        except Exception as error:  # numpy and zipfile raise a dozen types on damaged files
            raise InputError(f"predictor.path={path}: no trained predictor ({str(error)[:80]}); {_REMEDY}") from None
        good = header.get("format") == FORMAT and tuple(header.get("figures", ())) == FIGURES
        good = good and weights.figures.shape == (len(FIGURES),) and weights.words.ndim == 1
        if not good or not np.isfinite(weights.figures).all() or not np.isfinite(weights.words).all():
            raise InputError(f"predictor.path={path}: made by another version, or damaged; train it again: {_REMEDY}")
        return weights


class Trained(Predictor):
    """Predicts by weights from a file; it learns nothing more."""

    name = "trained"

    def __init__(self, path: str | None = None) -> None:
        """Read the weights.

        Raises:
            InputError: there are none.
        """
        if path is None or not str(path).strip():
            raise InputError(f"predictor.path={path}: missing; {_REMEDY}")
        self.weights = Weights.load(Path(str(path)).expanduser())

    def continues(self, trace: Trace, sessions: Sessions) -> npt.NDArray[np.float64]:
        """Return the probabilities; each rests on its own request and those before it."""
        return self.weights.predict(trace, sessions)
