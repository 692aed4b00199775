"""Prefill is stopped, or killed, while decode waits for it: no wrong token, no hung request."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.vllm.engine.client import Answer
from tests.vllm.engine.figures import Run
from tests.vllm.engine.marks import on
from tests.vllm.engine.pair import Pair, compare
from tests.vllm.engine.setups import PULL, PULL_TP2, PUSH, PUSH_TP2, STOCK_PULL

_STOPPED_S = 10.0
_LOAD_FAILED = "Skipping KV post-processing for failed request"  # vLLM's words, once for each


@on(STOCK_PULL, PULL, PULL_TP2, PUSH, PUSH_TP2)
def test_prefill_is_stopped_for_a_while(pair: Pair, new_run: Callable[[str], Run]) -> None:
    run = new_run(f"prefill stopped for {_STOPPED_S:.0f} s")
    prompts = pair.prompts.take(4)
    pair.served(pair.prompts.take(2), run)  # they have shaken hands
    with pair.held(prompts) as answers:
        time.sleep(_STOPPED_S)
        pair.alone(pair.prompts.take(2), run)
        assert not any(answer.done() for answer in answers)
        run.notes.append("all outstanding at its end, others served meanwhile")
    compare(prompts, [answer.result() for answer in answers], run)
    pair.served(pair.prompts.take(2), run)
    pair.wait_until_blocks_are_back()


@on(STOCK_PULL, PULL, PULL_TP2, PUSH, PUSH_TP2)
def test_prefill_is_killed(pair: Pair, new_run: Callable[[str], Run]) -> None:
    run = new_run(f"prefill killed, policy {pair.setup.policy}")
    prompts = pair.prompts.take(4)
    pair.served(pair.prompts.take(2), run)
    known = len(pair.decode.logged(_LOAD_FAILED))
    with pair.held(prompts) as waiting:
        pair.prefill.kill()
        started = time.monotonic()
    answers = [answer.result() for answer in waiting]
    run.seconds += time.monotonic() - started
    run.notes.append(f"answered {time.monotonic() - started:.1f} s after the kill")
    if pair.setup.policy == "recompute":
        compare(prompts, answers, run)
    else:
        _check_failures(answers, run)
    assert len(pair.decode.logged(_LOAD_FAILED)) == known + len(prompts)
    _check_counts(pair, len(prompts))
    pair.alone(pair.prompts.take(2), run)
    pair.renew_prefill()
    pair.served(pair.prompts.take(4), run)
    pair.wait_until_blocks_are_back()
    run.notes.append("served alone, and with a new prefill, afterwards")


def _check_failures(answers: list[Answer], run: Run) -> None:
    for answer in answers:
        run.requests += 1
        run.failed += 1
        assert (answer.status, answer.tokens) == (500, ()), answer


def _check_counts(pair: Pair, requests: int) -> None:
    """Decode's own handles failed, so they were posted; in push mode it has none."""
    if pair.setup.mode == "push":
        if pair.setup.ours:
            pair.decode.wait(
                "the peer's death is counted", lambda: pair.decode.metric("kvfast_dead_peers_total") >= 1
            )
        return
    handles = requests * pair.setup.prefill_ranks
    name = "kvfast_failed_transfers_total" if pair.setup.ours else "vllm:nixl_num_failed_transfers_total"
    pair.decode.wait_for_metric(name, handles)
