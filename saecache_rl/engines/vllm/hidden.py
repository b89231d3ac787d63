"""Hidden states of last prompt tokens, in the process that runs the model, and what a network says of them.

After a model step and before its tokens are sampled, the rows of those requests whose prompt ends in the step are
gathered (with chunked prefill that is the last chunk alone) and the network runs on them, on the model's device. Its
probabilities travel to the scheduler with the step's `ModelRunnerOutput`, pickled where the worker is another process.
vLLM hands that output to the scheduler before the request can end, so its blocks are never given back too early.
A request that resumes after a preemption may compute its prompt again; who receives keeps what came first.

Both of vLLM 0.32's model runners are known: V1 (a CPU's, and VLLM_USE_V2_MODEL_RUNNER=0), which our tests run, and V2
(a GPU's default), which is written from its source and was not run by us. On a GPU the probabilities are copied without
waiting; the copy is over when vLLM's own copy of the sampled tokens is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.engines.vllm.continuation import ATTRIBUTE, check_hidden_size
from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.plugin import PREDICTOR
from saecache_rl.engines.vllm.serving import logger
from saecache_rl.errors import InputError
from saecache_rl.predictor.network import Network

need_vllm()

import torch  # noqa: E402
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: E402

from saecache_rl.predictor.head import Head  # noqa: E402

_MARK = "saecache_attached"


class Ends(NamedTuple):
    """Requests whose prompt ends in a step, and the rows of their last prompt tokens in the step's hidden states."""

    requests: list[str]
    rows: npt.NDArray[np.int64]


def _ends(
    requests: list[str],
    computed: npt.NDArray[Any],
    scheduled: npt.NDArray[Any],
    prompt: npt.NDArray[Any],
    starts: npt.NDArray[Any],
) -> Ends:
    """Pick the requests of a batch whose prompt's last token is among those computed in the step.

    Args:
        requests: of the batch, N.
        computed: (N,) tokens of each before the step.
        scheduled: (N,) tokens of each in it.
        prompt: (N,) tokens of each one's prompt.
        starts: (N,) first row of each.
    """
    last = prompt.astype(np.int64) - 1
    chosen = np.flatnonzero((computed <= last) & (last < computed + scheduled))
    return Ends([requests[i] for i in chosen], (starts + last - computed)[chosen].astype(np.int64))


def _ends_v1(runner: Any, state: Any) -> Ends:
    batch = runner.input_batch
    count = len(batch.req_ids)
    starts = runner.query_start_loc.np[: count + 1].astype(np.int64)
    computed, prompt = batch.num_computed_tokens_cpu[:count], batch.num_prompt_tokens[:count]
    return _ends(list(batch.req_ids), computed, np.diff(starts), prompt, starts[:-1])


def _ends_v2(runner: Any, state: Any) -> Ends:
    batch = state.input_batch
    count = len(batch.req_ids)
    starts = batch.query_start_loc_np[: count + 1].astype(np.int64)
    prompt = runner.req_states.prompt_len.np[batch.idx_mapping_np[:count]]
    return _ends(list(batch.req_ids), batch.num_computed_tokens_np[:count], np.diff(starts), prompt, starts[:-1])


_EndsOf = Callable[[Any, Any], Ends]


def _reader(runner: Any) -> _EndsOf:
    """Return how to find a runner's prompt ends.

    Raises:
        InputError: neither of the two runners fits.
    """
    remedy = f"unset {PREDICTOR}, or train it on request figures"
    if not callable(getattr(runner, "sample_tokens", None)) or not hasattr(runner, "execute_model_state"):
        raise InputError(
            f"{PREDICTOR}: {type(runner).__name__} shows no hidden states that saecache_rl knows; {remedy}"
        )
    if getattr(runner, "pcp_manager", None) is not None:
        raise InputError(f"{PREDICTOR}: prefill context parallelism splits a prompt's hidden states; {remedy}")
    batch = getattr(runner, "input_batch", None)
    if all(hasattr(batch, a) for a in ("req_ids", "num_computed_tokens_cpu", "num_prompt_tokens")) and hasattr(
        runner, "query_start_loc"
    ):
        return _ends_v1
    if hasattr(getattr(runner, "req_states", None), "prompt_len"):
        return _ends_v2
    raise InputError(f"{PREDICTOR}: {type(runner).__name__} has neither vLLM 0.32's V1 nor its V2 batch; {remedy}")


def prompt_ends(runner: Any, ends_of: _EndsOf) -> tuple[list[str], Any]:
    """Return the requests whose prompt ends in the step just computed, and their (n, h) hidden states.

    Between `execute_model` and `sample_tokens` alone; the states are after the model's final norm.
    """
    state = runner.execute_model_state
    hidden = None if state is None else state.hidden_states
    if not isinstance(hidden, torch.Tensor):  # nothing was computed, or not the last of a pipeline's stages
        return [], None
    ends = ends_of(runner, state)
    if not ends.requests:
        return [], None
    rows = torch.from_numpy(ends.rows)
    if hidden.device.type != "cpu":
        rows = rows.pin_memory().to(hidden.device, non_blocking=True)
    return ends.requests, hidden[rows]


class _Said(NamedTuple):
    """Probabilities on their way to the host. event: None where they are there."""

    requests: list[str]
    values: Any
    event: Any

    def read(self) -> dict[str, float]:
        if self.event is not None:
            self.event.synchronize()
        return dict(zip(self.requests, self.values.tolist(), strict=True))


class _Later(AsyncModelRunnerOutput):  # type: ignore[misc]
    """An output of asynchronous scheduling that bears probabilities when it is read."""

    def __init__(self, output: AsyncModelRunnerOutput, said: _Said) -> None:
        self.output, self.said = output, said

    def get_output(self) -> ModelRunnerOutput:
        """See vLLM."""
        output = self.output.get_output()
        setattr(output, ATTRIBUTE, self.said.read())
        return output


class _Attached:
    """In the place of a runner's `sample_tokens`."""

    def __init__(self, runner: Any, network: Network) -> None:
        self.runner, self.ends_of = runner, _reader(runner)
        self.head = Head(network, runner.device)
        self.own = runner.sample_tokens
        self.failures = 0

    def _say(self) -> _Said | None:
        try:
            requests, hidden = prompt_ends(self.runner, self.ends_of)
            if not requests:
                return None
            values = self.head(hidden)
            if values.device.type == "cpu":
                return _Said(requests, values, None)
            values = values.to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            return _Said(requests, values, event)
        except Exception as error:  # the engine goes on without
            self.failures += 1
            if self.failures & (self.failures - 1) == 0:
                logger.error("saecache_rl: prediction failed %d times: %r", self.failures, error, exc_info=error)
            return None

    def __call__(self, grammar_output: Any) -> Any:
        said = self._say()
        output = self.own(grammar_output)
        if said is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return _Later(output, said)
        if isinstance(output, ModelRunnerOutput):
            setattr(output, ATTRIBUTE, said.read())
        return output


def attach(worker: Any, network: Network, path: str) -> None:
    """Let a worker's model runner predict.

    Raises:
        InputError: the served model's hidden states have another length, or the runner is not known.
    """
    runner = worker.model_runner
    if isinstance(getattr(runner, "sample_tokens", None), _Attached):
        return
    check_hidden_size(network, worker.model_config, path)
    runner.sample_tokens = _Attached(runner, network)
    logger.info("saecache_rl: predicts from hidden states of %d numbers whether sessions go on", network.inputs)


def install(network: Network, path: str) -> None:
    """Let every worker that is made from now on, here or in a process forked from this one, predict."""
    own = getattr(WorkerWrapperBase.initialize_from_config, _MARK, WorkerWrapperBase.initialize_from_config)

    def initialize_from_config(self: Any, kv_cache_configs: list[Any]) -> None:
        own(self, kv_cache_configs)
        attach(self.worker, network, path)

    setattr(initialize_from_config, _MARK, own)
    WorkerWrapperBase.initialize_from_config = initialize_from_config


def uninstall() -> None:
    """Undo `install` for workers to come."""
    own = getattr(WorkerWrapperBase.initialize_from_config, _MARK, None)
    if own is not None:
        WorkerWrapperBase.initialize_from_config = own
