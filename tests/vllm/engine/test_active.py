"""An operator can see that kvfast polls: in the log at the start, and in the metrics."""

from __future__ import annotations

from collections.abc import Callable

import kvfast
from tests.vllm.engine import client
from tests.vllm.engine.figures import Run
from tests.vllm.engine.marks import on
from tests.vllm.engine.pair import Pair
from tests.vllm.engine.setups import OURS, STOCK_PULL

_START_LINE = "kvfast polls for "


@on(*OURS)
def test_the_log_says_who_polls(pair: Pair) -> None:
    setup = pair.setup
    backend = setup.backend or kvfast.BACKEND
    worker = f"KvfastNixl{setup.mode.capitalize()}ConnectorWorker"
    for server, ranks in ((pair.prefill, setup.prefill_ranks), (pair.decode, 1)):
        lines = server.logged(_START_LINE)
        assert len(lines) == ranks
        for line in lines:
            assert f"{_START_LINE}{worker}: backend={backend}, ops=nixl (" in line or backend == "python"
            assert f"backend={backend}, " in line
            assert line.endswith(f"scan={setup.scan or 'watch'}, sync_mode=RW")


@on(STOCK_PULL)
def test_stock_says_nothing_of_kvfast(pair: Pair) -> None:
    for server in (pair.prefill, pair.decode):
        assert server.logged("kvfast polls") == []
        assert not any(name.startswith("kvfast") for name in client.metrics(server.port))


@on(*OURS)
def test_the_metrics_have_kvfast(pair: Pair, new_run: Callable[[str], Run]) -> None:
    pair.served(pair.prompts.take(2), new_run("metrics"))
    mine, theirs = "kvfast_transfers_total", "vllm:nixl_xfer_time_seconds_count"
    reader = pair.reader
    reader.wait("kvfast counts as vLLM does", lambda: reader.metric(mine) == reader.metric(theirs) > 0)
    for server in (pair.prefill, pair.decode):
        infos = [key for key in client.metrics(server.port) if key.startswith("kvfast_info{")]
        assert len(infos) == 1
        assert f'backend="{pair.setup.backend or kvfast.BACKEND}"' in infos[0]
        assert f'scan="{pair.setup.scan or "watch"}"' in infos[0]
    assert reader.metric("kvfast_bytes_total") == reader.metric("vllm:nixl_bytes_transferred_sum")
    assert reader.metric("kvfast_failed_transfers_total") == 0
