"""A state in one file: nested dictionaries of arrays and plain values, in NumPy's .npz, without pickle.

In flows what `state_dict` of an engine or of an agent returns; out flows the same, to the bit. The file is replaced
whole or not at all, so that what is killed while it saves still has its previous checkpoint.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError

FORMAT = 1
_ARRAY = "array number"

Arrays = dict[str, npt.NDArray[Any]]


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`, atomically and durably.

    Args:
        path: the file; its folder exists.
        state: nested mappings with text keys, lists, NumPy arrays, numbers, text, booleans and None.

    Raises:
        TypeError: a value of another kind.
    """
    arrays: Arrays = {}
    header = {"format": FORMAT, "state": _flatten(state, arrays, "state")}
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load(path: Path, remedy: str = "delete it to start the run anew") -> dict[str, Any]:
    """Read what `save` wrote; tuples come back as lists, NumPy numbers as Python's.

    Args:
        path: the file.
        remedy: what to do, or what is done, about a file that can't be used; ends the message.

    Raises:
        InputError: the file is absent, damaged, no checkpoint, or of another version.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            header = json.loads(str(data["header"]))
            arrays = {name: data[name] for name in data.files if name != "header"}
        version = header["format"]
        if version != FORMAT:
            raise InputError(f"{path}: checkpoint format {version}, expected {FORMAT}; {remedy}")
        state: dict[str, Any] = _restore(header["state"], arrays)
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint; a run writes one every `checkpoint_every` windows") from None
    except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a whole checkpoint ({reason}); {remedy}") from None
    return state


def _flatten(value: Any, arrays: Arrays, place: str) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{place}: a checkpoint's keys are text")
        return {key: _flatten(item, arrays, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_flatten(item, arrays, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{place}: an array of Python objects does not go into a checkpoint")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{place}: a {type(value).__name__} does not go into a checkpoint")


def _restore(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _restore(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    return value
