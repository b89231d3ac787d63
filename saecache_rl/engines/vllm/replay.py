"""Replays a trace, one request after another, through vLLM's own `KVCacheManager`, without a model.

Each block of the trace becomes one block of tokens, the same wherever its identity comes up; what is left over is a
partial block. A reply whose blocks the trace names is decoded token by token, as a scheduler would; any other request
ends with its first token, so that no block is taken which the trace does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from saecache_rl.cache.policy import Policy
from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.serving import Choice, Served
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace


class ReplayClock:
    """The clock of a replay: the arrival of the request that is being served."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@dataclass(frozen=True)
class Constant:
    """The agent of a replay: the policy's start values for ever."""

    policy: Policy
    name: str = "constant"

    def act(self, stats: Any) -> Any:
        """Return the start values."""
        return self.policy.space().start()

    def observe(self, stats: Any, reward: float) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Step:
    """What one request met: hit blocks, and the identities of the blocks evicted for it, in order."""

    hit_blocks: int
    evicted: tuple[int, ...]


class Replay:
    """A `KVCacheManager` and the trace that goes through it.

    Attributes:
        manager: vLLM's, over its own pool or over ours.
    """

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        policy: Policy | None,
        sessions: Sessions | None = None,
        window: int = 2**62,
        events: bool = True,
    ) -> None:
        """Make the manager.

        Args:
            trace: the requests.
            num_blocks: capacity, vLLM's null block not counted.
            policy: None: vLLM's own pool.
            sessions: goes along as hints, with the blocks' types; None: the engine finds sessions itself.
            window: requests between two decisions of the (constant) agent.
            events: have vLLM report evictions, which `serve` needs.
        """
        need_vllm()
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core import kv_cache_manager, kv_cache_utils
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        from saecache_rl.engines.vllm.manager import PolicyKVCacheManager

        self.trace, self.sessions, self.clock = trace, sessions, ReplayClock()
        size = trace.block_size
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        options: dict[str, Any] = {
            "kv_cache_config": config,
            "max_model_len": num_blocks * size,
            "scheduler_block_size": size,
            "hash_block_size": size,
            "enable_caching": True,
            "enable_kv_cache_events": events,
        }
        self.manager: Any
        if policy is None:
            self.manager = kv_cache_manager.KVCacheManager(**options)
        else:
            choice = Choice(Constant(policy), window, self.clock, ended_for_tool=self._ended_for_tool)
            self.manager = PolicyKVCacheManager(**options, choice=choice)
        kv_cache_utils.init_none_hash(sha256)
        self._hasher = kv_cache_utils.get_request_block_hasher(size, sha256)
        self._identity: dict[Any, int] = {}
        self._numbers: dict[str, int] = {}

    def _ended_for_tool(self, served: Served) -> bool:
        r = self._numbers.get(served.request_id)
        return r is not None and bool(self.trace.flags[r] & ENDED_FOR_TOOL)

    def chain(self, r: int) -> np.ndarray[Any, Any]:
        """Identities of the full blocks of request `r`."""
        t = self.trace
        prompt = t.prompt_blocks[t.prompt_start[r] : t.prompt_start[r + 1]]
        return np.concatenate([prompt, t.generated_blocks[t.generated_start[r] : t.generated_start[r + 1]]])

    def request(self, r: int) -> tuple[Any, list[int]]:
        """vLLM's request number `r`, and the tokens of its reply."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        t, size = self.trace, self.trace.block_size
        chain = self.chain(r)
        prompt_tokens = int(t.prompt_tokens[r])
        output_tokens = max(int(t.output_tokens[r]), 1) if t.reply_named[r] else 1
        # Tokens of one block: its identity, then its places.
        tokens = (chain[:, None].astype(np.int64) * size + np.arange(size)).reshape(-1).tolist()
        tokens += [0] * (prompt_tokens + output_tokens - len(tokens))
        extra: dict[str, Any] | None = None
        if self.sessions is not None:
            kinds = t.token_type[chain]
            extra = {
                "session_id": f"s{self.sessions.session[r]}",
                "session_kind": "agentic" if self.sessions.agentic[r] else "chat",
                "spans": [[i * size, (i + 1) * size, TOKEN_TYPE_NAMES[k]] for i, k in enumerate(kinds.tolist())],
            }
        self._numbers = {f"r{r}": r}
        request = Request(
            request_id=f"r{r}",
            prompt_token_ids=tokens[:prompt_tokens],
            sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, extra_args=extra),
            pooling_params=None,
            arrival_time=float(t.arrival[r]),
            cache_salt=str(t.salt[r]) if t.salt[r] else None,
            block_hasher=self._hasher,
        )
        return request, tokens[prompt_tokens : prompt_tokens + output_tokens]

    def serve(self, r: int) -> Step:
        """Serve request `r` from its arrival to its end.

        Raises:
            AssertionError: it found no room.
        """
        from vllm.v1.request import RequestStatus

        self.clock.now = float(self.trace.arrival[r])
        manager = self.manager
        request, reply = self.request(r)
        blocks, hit_tokens, _ = manager.get_computed_blocks(request)
        request.status = RequestStatus.RUNNING
        prompt_tokens = request.num_prompt_tokens
        if manager.allocate_slots(request, prompt_tokens - hit_tokens, hit_tokens, blocks) is None:
            raise AssertionError(f"request {r} found no room")
        request.num_computed_tokens = prompt_tokens
        for token in reply[:-1]:
            request.append_output_token_ids(token)
            if manager.allocate_slots(request, 1) is None:
                raise AssertionError(f"request {r} found no room for its reply")
            request.num_computed_tokens += 1
        request.append_output_token_ids(reply[-1])
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        manager.free(request)
        return Step(hit_tokens // self.trace.block_size, tuple(self._evicted(request, r)))

    def _evicted(self, request: Any, r: int) -> Iterator[int]:
        from vllm.distributed.kv_events import BlockRemoved
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        for block_hash, identity in zip(request.block_hashes, self.chain(r).tolist(), strict=False):
            self._identity[maybe_convert_block_hash(block_hash)] = identity
        for event in self.manager.take_events():
            if isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    yield self._identity[block_hash]
