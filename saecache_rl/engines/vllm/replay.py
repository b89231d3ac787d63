"""Replays a trace, one request after another, through vLLM's own `KVCacheManager`, without a model.

A block's hash is made from its identity, which stands for the block's tokens and all before them; on demand its tokens
are made from that, the same wherever it comes up, and vLLM hashes them. What fills no block is a partial one. A reply
that the trace names is decoded, a block or a token at a time; any other request ends with its first token, so that no
block is taken which the trace does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.policy import Policy
from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.serving import Choice, Served
from saecache_rl.engines.vllm.tokens import mix
from saecache_rl.vocabulary import NUM_TOKEN_TYPES, TOKEN_TYPE_NAMES
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


#: Bytes of a hash, as sha256 has them; the last four are the identity.
HASH_BYTES = 32


def hints_of(trace: Trace, sessions: Sessions, r: int) -> dict[str, Any]:
    """Session and token types of request `r` as a client hints them; blocks of one type are one span."""
    size = trace.block_size
    kinds = trace.token_type[trace.chain(r)]
    edges = [*np.flatnonzero(np.diff(kinds, prepend=NUM_TOKEN_TYPES)).tolist(), len(kinds)]
    return {
        "session_id": f"s{sessions.session[r]}",
        "session_kind": "agentic" if sessions.agentic[r] else "chat",
        "spans": [[a * size, b * size, TOKEN_TYPE_NAMES[kinds[a]]] for a, b in pairwise(edges)],
    }


def identity_hashes(count: int) -> bytes:
    """The hashes of identities 0 to `count`, one after another: no two are alike, nor are their first eight bytes."""
    words = np.empty((count, HASH_BYTES // 8), np.uint64)
    words[:, 0] = mix(np.arange(count, dtype=np.uint64))  # one to one
    words[:, 1], words[:, 2] = mix(words[:, 0]), ~words[:, 0]
    words[:, 3] = np.arange(count, dtype=np.uint64).byteswap()
    return words.tobytes()


class Replay:
    """A `KVCacheManager` and the trace that goes through it.

    Attributes:
        manager: vLLM's, over its own pool or over ours.
    """

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        agent: Any,
        sessions: Sessions | None = None,
        window: int = 2**62,
        events: bool = True,
        tokens: bool = False,
        at_once: int | None = None,
        continues: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Make the manager.

        Args:
            trace: the requests.
            num_blocks: capacity, vLLM's null block not counted.
            agent: of our pool; a policy under its start values; None: vLLM's own pool.
            sessions: goes along as hints, with the blocks' types; None: the engine finds sessions itself.
            window: requests between two decisions of the agent.
            events: have vLLM report evictions as events, and read them there; else they are noted where blocks leave
                the queue of free ones, and our pool takes its short ways.
            tokens: make the tokens of each block and have vLLM hash them.
            at_once: tokens of a reply that are decoded at once, at most; None: up to the end of a block.
            continues: (R,) the predictor's probability that a request's session goes on; None: never.
        """
        need_vllm()
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core import kv_cache_manager, kv_cache_utils
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        from saecache_rl.engines.vllm.manager import PolicyKVCacheManager

        self.trace, self.sessions, self.clock = trace, sessions, ReplayClock()
        self._continues = continues
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
        if agent is None:
            self.manager = kv_cache_manager.KVCacheManager(**options)
        else:
            agent = Constant(agent) if isinstance(agent, Policy) else agent
            predictor = None if continues is None else self._goes_on
            choice = Choice(agent, window, self.clock, predictor, ended_for_tool=self._ended_for_tool)
            self.manager = PolicyKVCacheManager(**options, choice=choice)
        kv_cache_utils.init_none_hash(sha256)
        self.hasher = kv_cache_utils.get_request_block_hasher(size, sha256)
        self._hashes = b"" if tokens else identity_hashes(len(trace.parent))
        self._tokens, self._events, self._at_once = tokens, events, at_once or size
        self._identity: dict[bytes, int] = {}
        self._numbers: dict[str, int] = {}
        self._noted: list[bytes] | None = None

    def _ended_for_tool(self, served: Served) -> bool:
        r = self._numbers.get(served.request_id)
        return r is not None and bool(self.trace.flags[r] & ENDED_FOR_TOOL)

    def _goes_on(self, served: Served) -> float:
        r = self._numbers.get(served.request_id)
        return 0.0 if r is None or self._continues is None else float(self._continues[r])

    def request(self, r: int) -> tuple[Any, list[int]]:
        """vLLM's request number `r`, and the tokens of its reply."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        t, size = self.trace, self.trace.block_size
        chain = t.chain(r)
        prompt_tokens = int(t.prompt_tokens[r])
        output_tokens = max(int(t.output_tokens[r]), 1) if t.reply_named[r] else 1
        tokens: list[int] = []
        if self._tokens:  # of one block: its identity, then its places
            tokens = (chain[:, None].astype(np.int64) * size + np.arange(size)).reshape(-1).tolist()
            hasher = self.hasher
        else:
            hashes = [self._hashes[at : at + HASH_BYTES] for at in (HASH_BYTES * chain.astype(np.int64)).tolist()]

            def hasher(request: Any) -> list[bytes]:
                return hashes[len(request.block_hashes) : request.num_tokens // size]

        tokens += [0] * (prompt_tokens + output_tokens - len(tokens))
        extra = None if self.sessions is None else hints_of(t, self.sessions, r)
        self._numbers = {f"r{r}": r}
        request = Request(
            request_id=f"r{r}",
            prompt_token_ids=tokens[:prompt_tokens],
            sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, extra_args=extra),
            pooling_params=None,
            arrival_time=float(t.arrival[r]),
            cache_salt=str(t.salt[r]) if t.salt[r] else None,
            block_hasher=hasher,
        )
        return request, tokens[prompt_tokens : prompt_tokens + output_tokens]

    def serve(self, r: int) -> Step:
        """Serve request `r` from its arrival to its end.

        Raises:
            AssertionError: it found no room.
        """
        from vllm.v1.request import RequestStatus

        if self._noted is None:
            self._noted = self._note()
        self.clock.now = float(self.trace.arrival[r])
        manager = self.manager
        request, reply = self.request(r)
        blocks, hit_tokens, _ = manager.get_computed_blocks(request)
        request.status = RequestStatus.RUNNING
        prompt_tokens = request.num_prompt_tokens
        if manager.allocate_slots(request, prompt_tokens - hit_tokens, hit_tokens, blocks) is None:
            raise AssertionError(f"request {r} found no room")
        request.num_computed_tokens = prompt_tokens
        done = 0
        while done < len(reply) - 1:  # of the last token nothing is kept
            left = self.trace.block_size - request.num_computed_tokens % self.trace.block_size
            tokens = reply[done : min(done + min(left, self._at_once), len(reply) - 1)]
            request.append_output_token_ids(tokens)
            if manager.allocate_slots(request, len(tokens)) is None:
                raise AssertionError(f"request {r} found no room for its reply")
            request.num_computed_tokens += len(tokens)
            done += len(tokens)
        request.append_output_token_ids(reply[-1])
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        manager.free(request)
        return Step(hit_tokens // self.trace.block_size, tuple(self._evicted(request, r)))

    def _note(self) -> list[bytes]:
        """Note the hash of each block that leaves the queue of free ones with one, unless events say so."""
        noted: list[bytes] = []
        if self._events:
            return noted
        queue = self.manager.block_pool.free_block_queue
        take = queue.popleft_n

        def noting(n: int) -> Any:
            blocks = take(n)
            noted.extend(block.block_hash for block in blocks if block.block_hash is not None)
            return blocks

        queue.popleft_n = noting
        return noted

    def _evicted(self, request: Any, r: int) -> list[int]:
        """Identities of the blocks evicted since the last call."""
        from vllm.distributed.kv_events import BlockRemoved
        from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

        assert self._noted is not None
        hashes: list[Any] = [get_block_hash(key) for key in self._noted]
        self._noted.clear()
        for event in self.manager.take_events():
            if isinstance(event, BlockRemoved):
                hashes += event.block_hashes
        if not self._tokens:
            return [h & 0xFFFFFFFF if isinstance(h, int) else int.from_bytes(h[-4:], "big") for h in hashes]
        convert = maybe_convert_block_hash if self._events else bytes
        self._identity.update(zip(map(convert, request.block_hashes), self.trace.chain(r).tolist(), strict=False))
        return [self._identity[h] for h in hashes]
