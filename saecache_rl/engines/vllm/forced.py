"""A logits processor that makes the model say what a trace's reply was: `extra_args={"saecache_reply": [ids]}`.

The model computes each step as ever; only the choice of the token is taken from it.
"""

from __future__ import annotations

from typing import Any

from saecache_rl.engines.vllm.needs import need_vllm

need_vllm()

from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor  # noqa: E402
from vllm.v1.sample.logits_processor.builtin import process_dict_updates  # noqa: E402

#: Name of the argument that holds the reply.
REPLY = "saecache_reply"


class ForcedReply(LogitsProcessor):  # type: ignore[misc]
    """Leaves one token possible at each step of a request that says its reply; others are untouched."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[list[int], list[int]]] = {}  # reply, tokens so far

    def is_argmax_invariant(self) -> bool:
        """It decides the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """See vLLM."""
        process_dict_updates(self._rows, batch_update, self._begin)

    @staticmethod
    def _begin(params: Any, prompt: list[int] | None, output: list[int]) -> tuple[list[int], list[int]] | None:
        reply = (params.extra_args or {}).get(REPLY)
        return None if not reply else (reply, output)

    def apply(self, logits: Any) -> Any:
        """See vLLM; logits: (batch, vocabulary)."""
        for row, (reply, output) in self._rows.items():
            if len(output) < len(reply):
                logits[row] = float("-inf")
                logits[row, reply[len(output)]] = 0.0
        return logits
