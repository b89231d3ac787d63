"""One vector a request, of one trace: the last prompt token's hidden state, or an embedding of the latest text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.predictor import stored
from saecache_rl.predictor.network import Network
from saecache_rl.workloads.trace import Trace

_KIND = "vectors"
_REMEDY = "train_predictor features=hidden model=FOLDER on the same workload leaves them as vectors.npz"


@dataclass(frozen=True)
class Vectors:
    """rows: (R, h) float32. digest: of the trace that they belong to. model: by name, for people."""

    rows: npt.NDArray[np.float32]
    digest: str
    model: str

    def save(self, path: Path) -> None:
        """Write them, whole or not at all."""
        stored.write(path, {"kind": _KIND, "digest": self.digest, "model": self.model}, {"rows": self.rows})

    @staticmethod
    def load(path: Path, option: str) -> Vectors:
        """Read what `save` wrote.

        Raises:
            InputError: the file is absent, or holds no vectors.
        """
        header, arrays = stored.read(path, option, "vectors", _REMEDY)
        rows = arrays.get("rows")
        if header.get("kind") != _KIND or rows is None or rows.ndim != 2 or not np.isfinite(rows).all():
            raise InputError(f"{option}={path}: holds no vectors; {_REMEDY}")
        return Vectors(rows.astype(np.float32), str(header.get("digest")), str(header.get("model", "")))

    def check(self, network: Network) -> None:
        """See that a network looks at vectors of this length.

        Raises:
            InputError: it does not.
        """
        if self.rows.shape[1] != network.inputs:
            raise InputError(
                f"predictor.vectors: {self.rows.shape[1]} numbers a request, of {self.model}; the predictor was "
                f"trained on {network.inputs}, of {network.model}"
            )

    def of_trace(self, trace: Trace) -> npt.NDArray[np.float32]:
        """Return the rows, one a request of the trace.

        Raises:
            InputError: they belong to another trace.
        """
        if self.digest != trace.digest:
            raise InputError(
                f"predictor.vectors: made for other requests than these of {trace.name}; give the same workload "
                "options as train_predictor was given, workload.tokenizer= too, or run it again with these; a replay "
                "on a live engine scales its requests, and takes none"
            )
        return self.rows
