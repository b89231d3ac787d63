"""Prompts that a loader keeps: the tokens and the latest text of each request, in the trace's order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from saecache_rl.workloads.chain import chain_blocks
from saecache_rl.workloads.prompts import keep_prompts, keeper
from saecache_rl.workloads.token_blocks import blocks_of
from tests.workloads.samples import lines, load, said


def test_each_prompt_is_the_one_that_its_blocks_were_made_of(tmp_path: Path) -> None:
    talks = [
        {"conversation_id": n, "conversation": said(*(f"turn {k} of talk {n} and more words" for k in range(6)))}
        for n in range(5)
    ]
    options = ("session_rate=0.05", "block_size=4")
    with keep_prompts() as kept:
        trace = load("lmsys", tmp_path, *options, text=lines(*talks))
    prompts = kept.prompts
    assert prompts is not None
    assert prompts.tokens.tolist() == trace.prompt_tokens.tolist()
    assert len(prompts.timelines) == 5  # a session's prompts begin one timeline
    raw = []
    for r in range(trace.num_requests):
        ids = prompts.timelines[prompts.timeline[r]][: prompts.tokens[r]]
        raw.append(blocks_of(ids, np.zeros(len(ids), np.uint8), 4)[0])
        assert prompts.texts[r].startswith(f"turn {2 * trace.turn[r]} of talk")
    starts = np.concatenate([[0], np.cumsum([len(x) for x in raw])]).astype(np.int64)
    chained = chain_blocks(np.concatenate(raw), starts, np.zeros(len(raw), np.int32))
    # The same blocks are the same: identities agree up to their names.
    names = dict(zip(chained.blocks.tolist(), trace.prompt_blocks.tolist(), strict=True))
    assert [names[b] for b in chained.blocks.tolist()] == trace.prompt_blocks.tolist()
    assert len(set(names.values())) == len(names)
    assert load("lmsys", tmp_path, *options, text=lines(*talks)).digest == trace.digest
    assert keeper() is None


@pytest.mark.parametrize("workload", ["burstgpt", "aiperf", "bailian"])
def test_a_source_without_texts_keeps_none(workload: str, tmp_path: Path) -> None:
    with keep_prompts() as kept:
        load(workload, tmp_path)
    assert kept.prompts is None
