"""The scenarios of tests/cases, driven through vLLM's workers with kvfast's classes.

What a step of a scenario is here: a request is tracked when its metadata is in the worker, a post is
vLLM's own `_read_blocks` or `_xfer_blocks_for_req` over a scripted agent, a failure comes through the
queue of vLLM's background threads, a notification through NIXL, and a poll is `get_transfer_results`, or
`get_finished`, with `get_block_ids_with_load_errors`.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import ReadSpec

import kvfast.vllm.push
from kvfast.testing import FakeClock, ScriptedAgent, nixlRemoteDisconnectError
from kvfast.vllm.versions import check_vllm
from tests.cases.runner import (
    COMMON_STEPS,
    CaseRunner,
    Scenario,
    UnknownStepError,
    in_another_thread,
    refuse_unknown,
)
from tests.vllm import rig

NOT_HERE: Final = {
    "stall_is_named_once_and_blocks_stay_held": "a stall is only logged and counted, at no promised poll; "
    "see test_a_long_wait_is_counted_once",
    "abort_waits_for_the_transfer": "vLLM tells a worker of no abort: its scheduler waits for the receive",
    "push_consumer_abort_waits_for_the_writer": "as above",
    "tracked_twice": "request ids are the scheduler's, and a worker takes what it is given",
    "push_consumer_failure_waits_for_the_writer": "in vLLM nothing fails a request after its producer was "
    "told where to write, but the producer's death, which has a scenario of its own",
}
# What vLLM calls the counters that scenarios name. It has none for the others.
VLLM_COUNTS: Final = {
    "failed_transfers": "num_failed_transfers",
    "failed_notifs": "num_failed_notifications",
    "notifs_after_end": "num_notifications_after_expiry",
}
NO_PEER: Final = "P0"


class PostingAgent(ScriptedAgent):
    """Makes the handles that a scenario names, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: deque[int | None] = deque()

    def make_prepped_xfer(
        self, operation: str, local: Any, local_ids: Any, remote: Any, remote_ids: Any, notif_msg: bytes = b""
    ) -> Any:
        """Make the next handle, or raise. It has no notification: scenarios give theirs to the worker."""
        handle = self.planned.popleft()
        if handle is None:
            raise RuntimeError("prepare refused")
        return self.prepare(handle, peer=remote)

    def release_dlist_handle(self, handle: Any) -> None:
        """Release a descriptor list: there is nothing behind it."""

    def check_remote_metadata(self, agent: str) -> bool:
        """As NIXL 1.5: what is known of a peer stays."""
        return agent not in self.removed


class WorkerRunner(CaseRunner):
    """What receiving and sending have in common: the worker, its clock, its counters."""

    def __init__(self, worker: Any, agent: PostingAgent, clock: FakeClock, api: str) -> None:
        super().__init__(self, agent, clock)
        self.worker = worker
        self.scripted = agent
        self.api = api
        worker.kv_cache_config = SimpleNamespace(transfer_groups=[None])
        worker._compute_desc_ids = lambda block_ids, **_: np.concatenate([*block_ids, []])

    def connect(self, engine: str, *peers: str) -> None:
        """Have the worker know an engine, with an agent for each of its ranks."""
        worker = self.worker
        worker._remote_agents[engine] = {(0, rank): peer for rank, peer in enumerate(peers)}
        worker._engine_by_address[engine, 1] = engine
        worker.dst_xfer_side_handles[engine] = dict(enumerate(peers))
        for name in ("dst_num_blocks", "dst_region_num_blocks", "dst_uses_region_group_mapping"):
            getattr(worker, name)[engine] = 0
            getattr(worker, name)[worker.engine_id] = 0
        worker.dst_region_group_ids[engine] = []
        worker.src_xfer_handles_by_block_size[16] = 0

    def plan(self, handles: list[int], prepare_raises: bool, transfer_raises: list[int]) -> None:
        """Have the next handles made as a scenario says."""
        self.scripted.planned.extend(None if prepare_raises else handle for handle in handles)
        self.agent.refuse_transfer(*transfer_raises)
        for handle in transfer_raises:
            self.agent.set_state(handle, "ERR")  # what NIXL says of a handle that could not be posted

    def counts(self, counts: dict[str, int]) -> None:
        data = self.worker.xfer_stats.data
        known = VLLM_COUNTS if check_vllm().counts_late_notifs else VLLM_COUNTS.keys() - {"notifs_after_end"}
        found = {name: sum(data[VLLM_COUNTS[name]]) for name in counts if name in known}
        assert found == {name: counts[name] for name in found}

    def results(self) -> tuple[set[str], set[str]]:
        """Poll, through vLLM's newer or older method; return what ended sending, and receiving."""
        if self.api == "get_finished":
            sent, received = self.worker.get_finished()
        else:
            results = self.worker.get_transfer_results()
            sent, received = results.finished_sending, results.finished_recving
            assert results.failed_recving <= received
            self.failed_recving = set(results.failed_recving)
        return set(sent), set(received)


class ReceiveRunner(WorkerRunner):
    """Steps of a decode."""

    steps = {  # noqa: RUF012
        **COMMON_STEPS,
        "notif": "notif",
        "report_failure": "report_failure",
        "complete": "complete",
        "expect_writes": "expect_writes",
        "peer_lost": "peer_lost",
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.metas: dict[str, Any] = {}

    def track(self, req_id: str, *, blocks: list[list[int]], peer: str = NO_PEER) -> None:
        engine = f"engine-{peer}"
        self.connect(engine, peer)
        self.worker._is_hma_required = len(blocks) > 1
        self.worker.kv_cache_config.transfer_groups = [None] * len(blocks)
        meta = rig.meta_of(req_id, engine=engine)
        meta.local_block_ids = meta.local_physical_block_ids = meta.remote.block_ids = tuple(blocks)
        self.metas[req_id] = self.worker._recving_metadata[req_id] = meta

    def post(
        self,
        req_id: str,
        *,
        handles: list[int],
        returns: bool,
        prepare_raises: bool = False,
        transfer_raises: list[int] | None = None,
    ) -> None:
        if req_id in self.worker._recv_failures:
            assert not returns  # vLLM posts no sibling after one that could not be posted
            return
        self.plan(handles, prepare_raises, transfer_raises or [])
        assert all(self.read(req_id) for _ in handles) is returns

    def read(self, req_id: str, *, awaiting_kvs: bool = False) -> bool:
        meta = self.metas[req_id]
        done: bool = self.worker._read_blocks(
            read_spec=ReadSpec(0, meta.local_physical_block_ids, meta.remote.block_ids),
            request_id=req_id,
            dst_engine_id=meta.remote.engine_id,
            remote_request_id=meta.remote.request_id,
            local_xfer_side_handle=0,
            local_dram_handle=None,
            remote_xfer_side_handle=self.worker.dst_xfer_side_handles[meta.remote.engine_id][0],
            expected_consumers=1,
            awaiting_kvs=awaiting_kvs,
        )
        return done

    def notif(self, req_id: str, *, to: str, message: str) -> None:
        """As vLLM's reads of mixed memory do, which have a notification for several handles."""
        self.worker._pending_recv_notifs.setdefault(req_id, []).append((to, message.encode()))

    def fail(self, req_id: str) -> None:
        self.worker._failed_recv_reqs.put(req_id)

    def report_failure(self, req_id: str) -> None:
        in_another_thread(lambda: self.fail(req_id))

    def complete(self, req_id: str) -> None:
        """Nothing to read: vLLM sends the notification itself, at once."""
        self.worker._pending_recv_notifs.pop(req_id, None)
        assert self.read(req_id, awaiting_kvs=True)

    def expect_writes(self, req_id: str) -> None:
        assert req_id in self.worker._recving_metadata  # which is all that vLLM has of it

    def notified(self, req_id: str, *, producers: int) -> None:
        self.worker._pending_completion_notifs.put(f"{req_id}:{producers}".encode())

    def peer_lost(self, peer: str) -> None:
        """A heartbeat meets the disconnect. At the first step after, what it had said may still come."""
        self.agent.refuse_notifs(peer, error=nixlRemoteDisconnectError("gone"))
        self.worker._send_heartbeats(rig.heartbeat("any", engine=f"engine-{peer}"))
        self.poll({})

    def poll(self, expected: dict[str, Any] | None = None) -> None:
        """As in the scenarios; without an argument nothing is looked at."""
        sent, received = self.results()
        invalid = self.worker.get_block_ids_with_load_errors()
        if expected is None:
            return
        refuse_unknown(expected, ("finished", "failed", "invalid"))
        finished, failed = set(expected.get("finished", ())), set(expected.get("failed", ()))
        assert (sent, received) == (set(), finished | failed)
        if self.api != "get_finished":
            assert self.failed_recving == failed
        # Of a hybrid model vLLM names requests, not blocks.
        groups = [[]] if self.worker._is_hma_required else expected.get("invalid", [[]])
        assert invalid == set(groups[0])


class SendRunner(WorkerRunner):
    """Steps of a prefill."""

    steps = {**COMMON_STEPS, "heartbeat": "heartbeat"}  # noqa: RUF012
    ENGINE = "engine-d"

    def track(self, req_id: str, *, blocks: list[list[int]], lease_s: float) -> None:
        self.worker._reqs_to_process.add(req_id)
        self.worker._reqs_to_send[req_id] = self.clock() + lease_s

    def post(
        self,
        req_id: str,
        *,
        handles: list[int],
        returns: bool,
        prepare_raises: bool = False,
        transfer_raises: list[int] | None = None,
    ) -> None:
        """One push with a handle for each rank of the decode; vLLM's does not say whether it went out."""
        ranks = range(len(handles))
        self.plan(handles, prepare_raises, transfer_raises or [])
        self.connect(rig.ENGINE, *(f"D{rank}" for rank in ranks))
        self.worker.region_group_ids = []
        self.worker.tp_mappings[rig.ENGINE] = SimpleNamespace(
            all_source_ranks=list(ranks), source_ranks_per_group=[set(ranks)]
        )
        in_another_thread(lambda: self.worker._xfer_blocks_for_req(req_id=req_id, meta=rig.meta_of(req_id)))
        out = set(handles) <= set(self.agent.posted) and req_id not in self.worker._send_failures
        assert out is returns
        self.scripted.planned.clear()

    def notified(self, req_id: str, *, expected: int) -> None:
        self.arrived(f"{req_id}:{expected}")

    def heartbeat(self, req_ids: list[str], *, extend_s: float) -> None:
        self.worker._lease_extension = extend_s
        self.arrived("HB:" + ",".join(req_ids))
        assert self.results() == (set(), set())  # it is taken in at the engine's next step

    def arrived(self, message: str) -> None:
        if self.worker._TRANSFER_MODE == "push":
            self.worker._pending_completion_notifs.put(message.encode())
        else:
            self.agent.deliver_notif("D0", message.encode())

    def poll(self, expected: dict[str, Any] | None = None) -> None:
        """As in the scenarios; vLLM says only that a request has ended, and counts how."""
        counted = self.worker.xfer_stats.data["num_kv_expired_reqs"]
        before = len(counted)
        sent, received = self.results()
        if expected is None:
            return
        refuse_unknown(expected, ("finished", "expired"))
        expired = set(expected.get("expired", ()))
        assert (sent, received) == (expired | set(expected.get("finished", ())), set())
        assert len(counted) - before == len(expired)


def runner_of(scenario: Scenario, patch: Callable[[Any, str, Any], None], api: str, **setup: Any) -> Any:
    """Return what runs a scenario: a pull or a push worker, whichever has what it is about."""
    options = dict(scenario["options"])
    quarantine = options.pop("quarantine", None)
    if quarantine is not None:
        setup["lost_s"] = quarantine["lost_s"]
        assert quarantine["failed_s"] == 0  # vLLM has nothing of the kind
    if options:
        raise UnknownStepError(f"options {options}")
    agent, clock = PostingAgent(), FakeClock()
    worker = rig.make(rig.OURS[mode_of(scenario)], agent, **setup)
    rig.use_clock(worker, clock)
    for module in (base_worker, kvfast.vllm.push):
        patch(module, "time", clock_module(module.time, clock))
    make = ReceiveRunner if scenario["kind"] == "receive" else SendRunner
    return make(worker, agent, clock, api)


def mode_of(scenario: Scenario) -> str:
    """Return which worker has what a scenario is about."""
    steps = {name for step in scenario["steps"] for name in step}
    if scenario["kind"] == "receive":
        return "push" if "expect_writes" in steps else "pull"
    return "pull" if "notified" in steps else "push"


def clock_module(time: Any, clock: FakeClock) -> Any:
    """Return a `time` whose `perf_counter`, by which vLLM's leases go, is a test's clock."""
    module = types.ModuleType("time")
    module.__dict__.update(vars(time), perf_counter=clock)
    return module
