"""What an engine tells its front end of the policy: counts since the last report, and the state now; as one JSON text.

The engine side of the metrics; `metrics` is the front end's. Neither vLLM nor Prometheus is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.vllm.hints import NAMES as HINT_NAMES
from saecache_rl.engines.vllm.serving import Serving
from saecache_rl.vocabulary import QUEUE_NAMES, TOKEN_TYPE_NAMES


class Counted(NamedTuple):
    """One counter: its label (None: it has none), what it counts, and the label's values that are known beforehand."""

    label: str | None
    text: str
    known: tuple[str, ...] = ()


#: The counters of a report, by name.
COUNTERS: Mapping[str, Counted] = {
    "queue_hit_blocks": Counted("queue", "Blocks hit, by the queue they were in.", QUEUE_NAMES),
    "queue_evicted_blocks": Counted("queue", "Blocks evicted, by the queue they were in.", QUEUE_NAMES),
    "token_type_matchable_blocks": Counted(
        "token_type", "Blocks that prompts could have hit, by token type.", TOKEN_TYPE_NAMES
    ),
    "token_type_hit_blocks": Counted("token_type", "Blocks hit, by token type.", TOKEN_TYPE_NAMES),
    "token_type_evicted_blocks": Counted("token_type", "Blocks evicted, by token type.", TOKEN_TYPE_NAMES),
    "windows": Counted(None, "Windows of requests after which the agent has decided anew."),
    "fallbacks": Counted(None, "Choices of blocks that were left to vLLM's own order."),
    "policy_errors": Counted("place", "Failures of the policy, the agent or the checkpoint, by place."),
    "ignored_hints": Counted("hint", "Hints that were not valid and so ignored, by name.", HINT_NAMES),
}

_Counts = dict[str, dict[str, int]]


class Report:
    """Tells what is new in a `Serving` since it was last asked."""

    def __init__(self, serving: Serving, in_force: Callable[[], bool]) -> None:
        """Begin; `in_force` says whether the policy still chooses."""
        self._serving, self._in_force = serving, in_force
        self._seen: tuple[Any, ...] | None = None
        self._told: _Counts = {}
        self._params: PolicyParams | None = None

    def take(self) -> str | None:
        """What is new, for `metrics.attach`; None if nothing is. The first names every label that is known, with 0."""
        seen = (*self._serving.progress(), self._in_force())
        if seen == self._seen:
            return None
        first, self._seen = self._seen is None, seen
        serving, params = self._serving, self._serving.live.params
        now = self._counts()
        report: dict[str, Any] = {
            "agent": serving.choice.agent.name,
            "policy": serving.policy.name,
            "in_force": seen[-1],
            "unreferenced": dict(zip(QUEUE_NAMES, serving.live.held().tolist(), strict=True)),
            "added": {name: counts for name in now if (counts := self._added(now, name, first))},
        }
        if params is not self._params:
            self._params = params
            report["parameters"] = params.as_dict()
        self._told = now
        return json.dumps(report)

    def _added(self, now: _Counts, name: str, first: bool) -> dict[str, int]:
        counts, told = now[name], self._told.get(name, {})
        if counts == told and not first:
            return {}
        return {
            label: count - told.get(label, 0) for label, count in counts.items() if first or count != told.get(label, 0)
        }

    def _counts(self) -> _Counts:
        totals, counts = self._serving.live.totals(), self._serving.counts
        columns: _Counts = {name: {} for name in COUNTERS}
        for name, labels, column in (
            ("queue_hit_blocks", QUEUE_NAMES, totals.queue_hits),
            ("queue_evicted_blocks", QUEUE_NAMES, totals.queue_evictions),
            ("token_type_matchable_blocks", TOKEN_TYPE_NAMES, totals.type_accesses),
            ("token_type_hit_blocks", TOKEN_TYPE_NAMES, totals.type_hits),
            ("token_type_evicted_blocks", TOKEN_TYPE_NAMES, totals.type_evictions),
        ):
            columns[name] = dict(zip(labels, column.tolist(), strict=True))
        columns["windows"][""] = self._serving.live.window
        columns["fallbacks"][""] = counts.fallbacks
        columns["policy_errors"] = dict(counts.errors)
        columns["ignored_hints"] = dict.fromkeys(HINT_NAMES, 0) | counts.ignored_hints
        return columns
