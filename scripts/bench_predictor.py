"""Predictions a second: SAECache's network on hidden states beside an embedding model with the same network on top.

    python scripts/bench_predictor.py [FILE of openassistant] [--hidden-size 4096] [--rounds 5]

Counted are, of the network, its pass over hidden states that are there already: the served model computes them whether
they are looked at or not. Of the embedding model (all-MiniLM-L6-v2, as Learned Prefix Caching uses), tokens, embedding
and the network, from the latest text of a request (its last 1,500 characters; the model reads 256 tokens of it). Texts
are those of the requests of FILE, by default SAECACHE_DATA_DIR's; values of hidden states don't matter to the time, so
they are drawn. One thread each, processor time, so that other work on the machine counts little; sides alternate;
medians over the rounds, each of at least a second.
The paper's figure, 8.8 (arXiv 2605.18825), is not of this measurement. Needs the extras torch and embedding. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np

from saecache_rl.errors import InputError
from saecache_rl.predictor.models import EmbeddingModel
from saecache_rl.predictor.network import WIDTHS, Network, need_torch
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.prompts import keep_prompts

BATCHES = (1, 32)
SECONDS = 1.0


def network(inputs: int) -> Network:
    """The paper's network with drawn weights."""
    random = np.random.default_rng(0)
    sizes = list(zip((inputs, *WIDTHS), WIDTHS, strict=False))
    a, b, c = ((random.normal(size=(n, m)) / np.sqrt(m)).astype(np.float32) for m, n in sizes)
    biases = [np.zeros(n, np.float32) for n in WIDTHS]
    return Network((a, b, c), (biases[0], biases[1], biases[2]))


def texts_of(file: str) -> list[str]:
    """The latest text of each request of a file of OpenAssistant's trees."""
    with keep_prompts() as kept:
        make("openassistant", f"path='{file}'", "arrivals=poisson", "session_rate=1")
    assert kept.prompts is not None
    return kept.prompts.texts


def per_second(predict: Callable[[int], Any], batch: int) -> float:
    """Predictions a second of `predict`, which is given the number of its call."""
    calls, begin = 0, time.process_time()
    while time.process_time() - begin < SECONDS:
        predict(calls)
        calls += 1
    return calls * batch / (time.process_time() - begin)


def measure(texts: list[str], hidden_size: int, rounds: int) -> dict[str, Any]:
    torch = need_torch()
    from saecache_rl.predictor.head import Head

    torch.set_num_threads(1)
    model = EmbeddingModel()
    ours, on_embeddings = Head(network(hidden_size), "cpu"), Head(network(384), "cpu")
    result: dict[str, Any] = {"hidden_size": hidden_size, "parameters": network(hidden_size).parameters}
    for batch in BATCHES:
        states = torch.from_numpy(np.random.default_rng(1).normal(size=(64, batch, hidden_size)).astype(np.float32))

        def hidden(call: int, states: Any = states) -> Any:
            return ours(states[call % len(states)])

        def embedded(call: int, batch: int = batch) -> Any:
            chosen = [texts[(call * batch + i) % len(texts)] for i in range(batch)]
            return on_embeddings(torch.from_numpy(model.embeddings(chosen)))

        sides: dict[str, Callable[[int], Any]] = {"network": hidden, "embedding": embedded}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for predict in sides.values():
            predict(0)
        for turn in range(rounds):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                rates[name].append(per_second(sides[name], batch))
        median = {name: statistics.median(values) for name, values in rates.items()}
        for name, values in rates.items():
            print(f"batch {batch}, {name}: {median[name]:,.0f} a second ({min(values):,.0f} to {max(values):,.0f})")
        result[f"ratio_batch_{batch}"] = round(median["network"] / median["embedding"], 1)
        result |= {f"{name}_per_second_batch_{batch}": round(value, 1) for name, value in median.items()}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SAECACHE_DATA_DIR", ".")) / "openassistant" / "en_100_tree.jsonl.gz"
    parser.add_argument("file", nargs="?", default=str(data))
    parser.add_argument("--hidden-size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    try:
        texts = texts_of(given.file)
        print(f"{len(texts)} texts, {statistics.mean(map(len, texts)):.0f} characters on average")
        result = measure(texts, given.hidden_size, given.rounds)
    except InputError as error:
        print(f"bench_predictor: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
