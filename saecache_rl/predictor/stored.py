"""Files of trained predictors: NumPy's .npz with a header in JSON, no pickles; written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError

FORMAT = 1
REMEDY = "python -m saecache_rl.train_predictor +workload=W leaves one as predictor.npz in its run's folder"

Arrays = dict[str, npt.NDArray[Any]]


def write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays under a header."""
    text = json.dumps({"format": FORMAT, **header})
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, header=np.array(text), **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def read(
    path: Path, option: str, what: str = "trained predictor", remedy: str = REMEDY
) -> tuple[dict[str, Any], Arrays]:
    """Read what `write` wrote.

    Args:
        path: of the file.
        option: that names it, for messages.
        what: is expected, for messages.
        remedy: how to get one.

    Raises:
        InputError: the file is absent, or none of this version.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            header = json.loads(str(data["header"]))
            arrays = {name: np.asarray(data[name]) for name in data.files if name != "header"}
        version = header.pop("format")
    except FileNotFoundError:
        raise InputError(f"{option}={path}: no such file; {remedy}") from None
    except Exception as error:  # numpy and zipfile raise a dozen types on damaged files
        raise InputError(f"{option}={path}: no {what} ({str(error)[:80]}); {remedy}") from None
    if version != FORMAT:
        raise damaged(path, option, remedy)
    return header, arrays


def damaged(path: Path, option: str, remedy: str = REMEDY) -> InputError:
    """Return what to raise where the content is not as `write` was given it."""
    return InputError(f"{option}={path}: made by another version, or damaged; train it again: {remedy}")
