"""Let a worker keep the hidden states that its predictor looks at; named to vLLM as `worker_extension_cls`."""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch and vLLM warn of themselves when they are first imported
    from saecache_rl.engines.vllm import hidden

_seen: list[tuple[str, list[float]]] = []
_own = hidden.prompt_ends


def _prompt_ends(runner: Any, ends_of: Any) -> tuple[list[str], Any]:
    requests, rows = _own(runner, ends_of)
    _seen.extend((request, rows[i].tolist()) for i, request in enumerate(requests))
    return requests, rows


hidden.prompt_ends = _prompt_ends


class KeepsVectors:
    """Methods that `collective_rpc` can call."""

    def take_vectors(self) -> list[tuple[str, list[float]]]:
        """Name and vector of each prompt that ended since the last call, in order."""
        taken = list(_seen)
        _seen.clear()
        return taken

    def process(self) -> int:
        """The worker's process."""
        import os

        return os.getpid()
