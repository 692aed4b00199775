"""Every token is that of a single engine, and the comparison can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.vllm.engine.figures import Run
from tests.vllm.engine.marks import on
from tests.vllm.engine.pair import Pair, compare
from tests.vllm.engine.setups import PULL, PUSH, SETUPS, STOCK_PULL

_REQUESTS = 20
_TRANSFERS = "vllm:nixl_xfer_time_seconds_count"
_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


@on(*SETUPS)
def test_every_token_is_a_single_engines(pair: Pair, new_run: Callable[[str], Run]) -> None:
    run = new_run("tokens")
    run.notes.append(f"started in {pair.prefill.start_s:.0f} and {pair.decode.start_s:.0f} s")
    before = pair.reader.metric(_TRANSFERS)
    expired = pair.prefill.metric(_EXPIRED)
    pair.served(pair.prompts.take(_REQUESTS), run)
    handles = _REQUESTS * pair.setup.prefill_ranks
    pair.reader.wait_for_metric(_TRANSFERS, before + handles)
    run.notes.append(f"{handles} handles")
    pair.wait_until_blocks_are_back()
    assert pair.prefill.metric(_EXPIRED) == expired  # they came back by notification
    assert pair.reader.metric("vllm:nixl_num_failed_transfers_total") == 0


@on(STOCK_PULL, PULL, PUSH)
def test_another_prompts_blocks_give_other_tokens(pair: Pair, new_run: Callable[[str], Run]) -> None:
    """The control: were a wrong block read, the comparison would show it."""
    run = new_run("control: blocks of another prompt")
    one, other = pair.prompts.take_twins()
    answer = pair.decoded(one, pair.prefilled(other))
    with pytest.raises(AssertionError, match="not"):
        compare([one], [answer], run)
    assert run.wrong == 1
    run.notes.append("wrong is what is expected here")
