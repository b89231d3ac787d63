"""Will the session of a request that is over go on? A trained predictor inside a live engine.

One on request figures needs nothing but what the scheduler's process knows of the request. One on hidden states runs
where the model runs (`saecache_rl.engines.vllm.hidden`); its probabilities come with the model's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy.special import expit

from saecache_rl.engines.vllm.plugin import PREDICTOR
from saecache_rl.engines.vllm.serving import Served, logger
from saecache_rl.errors import InputError
from saecache_rl.predictor.features import figures_of
from saecache_rl.predictor.network import HIDDEN, Network
from saecache_rl.predictor.trained import Weights, load

#: The attribute of vLLM's ModelRunnerOutput that bears the probabilities of a step, by request id.
ATTRIBUTE = "saecache_continues"


def load_predictor(path: str) -> Weights | Network:
    """Read a trained predictor that a live engine can use.

    Raises:
        InputError: the file is absent, is none, or looks at what a live engine does not have.
    """
    found = load(Path(path).expanduser(), PREDICTOR)
    if isinstance(found, Network) and found.sees != HIDDEN:
        raise InputError(f"{PREDICTOR}={path}: looks at embeddings of texts, not at the served model's hidden states")
    if isinstance(found, Weights) and len(found.words):
        raise InputError(
            f"{PREDICTOR}={path}: looks at words, which an engine has only as tokens; train it with text_buckets=0, or "
            "on hidden states: features=hidden"
        )
    return found


def check_hidden_size(network: Network, model_config: Any, path: str) -> None:
    """See that the served model's hidden states are those that a network looks at.

    Raises:
        InputError: they have another length, or come from a model that has none for a prompt's last token.
    """
    size = int(model_config.get_hidden_size())
    if size != network.inputs:
        raise InputError(
            f"{PREDICTOR}={path}: trained on hidden states of {network.inputs} numbers, those of {model_config.model} "
            f"have {size}; train it with model={model_config.model}"
        )
    if model_config.runner_type != "generate":
        raise InputError(
            f"{PREDICTOR}={path}: {model_config.model} generates no text (runner {model_config.runner_type})"
        )


def predictor_of(found: Weights | Network) -> Callable[[Served], float]:
    """Return what the engine asks when a request is over."""
    if isinstance(found, Network):
        return ByHiddenState()
    return ByFigures(found)


class ByFigures:
    """Asks a logistic regression on the figures of a request."""

    def __init__(self, weights: Weights) -> None:
        """Take weights without words."""
        self.weights = weights

    def __call__(self, served: Served) -> float:
        """Return how likely it is that the session of a request that is over goes on."""
        facts = served.facts
        row = figures_of(
            turn=[facts.turn],
            prompt_tokens=[facts.prompt_tokens],
            output_tokens=[facts.output_tokens],
            has_tools=[served.labels.has_tools],
            ended_for_tool=[facts.ended_for_tool],
            agentic=[facts.agentic],
            gap_seconds=[facts.gap_seconds],
        )
        return float(expit(row @ self.weights.figures)[0])


class ByHiddenState:
    """Says what the network in the worker has said of the request's prompt.

    Attributes:
        missing: requests that gave a reply and of whose prompt nothing was said: then 0.
    """

    def __init__(self) -> None:
        self.missing = 0

    def __call__(self, served: Served) -> float:
        """Return how likely it is that the session goes on."""
        if served.continues is not None:
            return served.continues
        if served.facts.output_tokens > 0:
            self.missing += 1
            if self.missing & (self.missing - 1) == 0:  # 1, 2, 4, …
                logger.warning(
                    "saecache_rl: no prediction for %d requests: their hidden states did not arrive; see that "
                    "VLLM_PLUGINS, if set, names saecache_rl",
                    self.missing,
                )
        return 0.0
