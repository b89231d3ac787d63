"""Replays workloads through the simulator and through vLLM's `KVCacheManager` over our pool, request by request.

    python scripts/parity.py agentic chat whole_blocks [--requests 20000] [--num-blocks N] [--agents vllm lru adaptive]
    python scripts/parity.py mooncake --set path=conversation_trace.jsonl --set generated=unique

For each agent, `vllm` (LRU against vLLM's own pool) among them, it prints the requests, those whose cached tokens or
evicted blocks, in their order, differ, and the evictions. Sessions and token types go along as hints. `whole_blocks` is
made here: prompts of exactly k blocks, each request sent twice, so that its last block and its reply are made again.
Options that a workload does not have are left out. Needs vLLM, no model. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from saecache_rl.configured import by_name, make
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.vllm.parity import compare
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.assemble import RawRequests, assemble
from saecache_rl.workloads.trace import Trace, completed_blocks

AGENTS = ("vllm", "lru", "saecache_fixed", "saecache", "adaptive")
WHOLE_BLOCKS = "whole_blocks"


def whole_blocks(requests: int = 2000, seed: int = 0, block_size: int = 16) -> Trace:
    """Conversations whose prompts fill their blocks to the last token; each request comes twice, one after the other.

    A reply takes less than a block, or some whole ones and a token more, or ends within a block.
    """
    generator = np.random.default_rng(seed)
    fresh = iter(range(2**62))
    system = [[next(fresh) for _ in range(int(n))] for n in generator.integers(2, 12, 4)]
    chains: list[list[int]] = []
    histories: list[list[int]] = []
    prompts, outputs, turns, sessions = [], [], [], []
    while len(chains) < requests:
        s = int(generator.integers(len(histories) + 1)) if generator.random() < 0.8 else len(histories)
        if s == len(histories):
            histories.append(list(system[int(generator.integers(len(system)))]))
        prompt = histories[s] + [next(fresh) for _ in range(int(generator.integers(1, 6)))]
        output = int(generator.choice([1, block_size // 2, block_size, block_size + 1, 3 * block_size + 1, 50]))
        reply = [next(fresh) for _ in range(int(completed_blocks(len(prompt) * block_size, output, block_size)))]
        for _ in range(2):
            chains.append(prompt + reply)
            prompts.append(len(prompt))
            outputs.append(output)
            turns.append(sessions.count(s))
            sessions.append(s)
        histories[s] = prompt + reply if len(prompt) < 40 else list(system[s % len(system)])
    count = len(chains)
    lengths = np.array([len(chain) for chain in chains])
    blocks = np.array(prompts, np.int64)
    raw = np.concatenate([np.array(chain, np.int64) for chain in chains])
    place = np.arange(len(raw)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kinds = np.where(place < 2, TokenType.SYSTEM, TokenType.USER)
    kinds[place >= np.repeat(blocks, lengths)] = TokenType.RESPONSE
    trace = assemble(
        RawRequests(
            arrival=np.cumsum(generator.exponential(2.0, count)),
            session=np.array(sessions, np.int64),
            turn=np.array(turns, np.int32),
            prompt_tokens=blocks * block_size,
            output_tokens=np.array(outputs, np.int64),
            flags=np.zeros(count, np.uint8),
            phase=np.zeros(count, np.uint8),
            generated=lengths - blocks,
            raw=raw,
            token_type=kinds.astype(np.uint8),
        ),
        name=WHOLE_BLOCKS,
        block_size=block_size,
        notes={},
    )
    trace.validate()
    return trace


def trace_of(name: str, options: dict[str, Any]) -> Trace:
    """A workload by name, or the one made here, with those of the options that it has."""
    if name == WHOLE_BLOCKS:
        return whole_blocks(**{key: options[key] for key in ("requests", "seed", "block_size") if key in options})
    target = {key: value for key, value in by_name("workload", name).items() if key != "num_blocks"}
    trace: Trace = make("workload", target | {key: value for key, value in options.items() if key in target})
    return trace


def agents_of(name: str) -> tuple[Any, Any] | None:
    """Two agents of a name, one for each side; None for vLLM's own pool."""
    if name == "vllm":
        return None
    agents = make("agent", name), make("agent", name)
    for agent in agents:
        agent.reset(0)
    return agents


def value_of(text: str) -> Any:
    """What stands behind ``key=``: JSON, or else text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", help=f"names of conf/workload, or {WHOLE_BLOCKS}")
    parser.add_argument("--agents", nargs="+", default=AGENTS, help=f"default: {' '.join(AGENTS)}")
    parser.add_argument("--requests", type=int, default=None, help="requests of each; default: the workload's own")
    parser.add_argument("--num-blocks", type=int, default=None, help="capacity; default: auto")
    parser.add_argument("--window", type=int, default=100, help="requests between two decisions of an agent")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the workloads")
    parser.add_argument("--events", action="store_true", help="read evictions from vLLM's events")
    parser.add_argument("--tokens", action="store_true", help="have vLLM hash tokens")
    arguments = parser.parse_args()
    options = {key: value_of(value) for key, _, value in (text.partition("=") for text in arguments.set)}
    if arguments.requests is not None:
        options["requests"] = arguments.requests
    wrong = 0
    for name in arguments.workloads:
        try:
            trace = trace_of(name, options)
            sides = [(agent, agents_of(agent)) for agent in arguments.agents]
            num_blocks = arguments.num_blocks or auto_capacity(trace)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        for side, agents in sides:
            began = time.perf_counter()
            found = compare(
                trace, num_blocks, agents, arguments.window, events=arguments.events, tokens=arguments.tokens
            )
            print(
                f"| {name} | {side} | {trace.num_requests} | {num_blocks} | {found.hit_blocks} | {found.evictions} | "
                f"{len(found.differing)}{f' (first {found.differing[:3]})' if found.differing else ''} | "
                f"{time.perf_counter() - began:.1f} s |",
                flush=True,
            )
            wrong += len(found.differing)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
