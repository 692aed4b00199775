"""Workers of vLLM without an engine: stock ones and kvfast's, over an agent of the test's choice."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import HeartbeatInfo, RemoteMeta, ReqMeta
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker, msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

from kvfast.testing import FakeClock
from kvfast.vllm.options import Options
from kvfast.vllm.pull import KvfastNixlPullConnectorWorker
from kvfast.vllm.push import KvfastNixlPushConnectorWorker

__all__ = ["NixlKVConnectorStats", "RemoteMeta"]

STOCK = {"pull": NixlPullConnectorWorker, "push": NixlPushConnectorWorker}
OURS = {"pull": KvfastNixlPullConnectorWorker, "push": KvfastNixlPushConnectorWorker}
ENGINE: Final = "engine-p"
AGENT: Final[Any] = b"agent-p"  # bytes, which is what NIXL's add_remote_agent returns and vLLM keeps


class Topology:
    """As much of vLLM's as a worker without an engine asks for: equal sizes on both sides."""

    def get_engine_info(self, engine_id: str) -> Any:
        sizes = {"remote_tp_size": 1, "remote_dcp_size": 1, "remote_block_size": 16}
        return SimpleNamespace(**sizes, remote_physical_blocks_per_logical=1)

    def block_size_ratio(self, remote_block_size: int) -> int:
        return 1

    def tp_ratio(self, remote_tp_size: int) -> int:
        return 1

    def unregister_remote_engine(self, engine_id: str) -> None:
        return None


def make(cls: type, agent: Any, **options: Any) -> Any:
    """Return a worker that has not run its constructor but has what the constructor sets."""
    worker: Any = object.__new__(cls)
    worker.nixl_wrapper = agent
    for name, value in _attributes().items():
        setattr(worker, name, value)
    worker.xfer_stats = NixlKVConnectorStats()
    if hasattr(worker, "_kvfast_start"):
        worker._kvfast_start(Options(**options))
    return worker


def use_clock(worker: Any, clock: FakeClock | None = None) -> FakeClock:
    """Have a worker's tables, and its retries, go by a clock of the test's."""
    clock = clock or FakeClock()
    worker._kvfast.ops._clock = worker._kvfast.retries._clock = clock
    for name in ("_recving_transfers", "_sending_transfers"):
        transfers = getattr(worker, name)
        if hasattr(transfers, "_table"):
            transfers._table = worker._kvfast.ops.make_table()
    return clock


def _attributes() -> dict[str, Any]:
    return {
        "_recving_transfers": defaultdict(list),
        "_recving_metadata": {},
        "_recv_failures": set(),
        "_pending_recv_notifs": {},
        "_failed_recv_reqs": queue.Queue(),
        "_ready_requests": queue.Queue(),
        "_invalid_block_ids": queue.Queue(),
        "_replicated_pcp_done_sending": set(),
        "_reqs_to_send": {},
        "_reqs_to_process": set(),
        "_sending_transfers": defaultdict(list),
        "_send_failures": set(),
        "_sending_transfers_lock": threading.Lock(),
        "_push_finished_blocks": {},
        "_pending_d_registrations": {},
        "_reg_send_inbox": queue.Queue(),
        "_finished_blocks_inbox": queue.Queue(),
        "_pending_completion_notifs": queue.Queue(),
        "_evict_finished_inbox": queue.Queue(),
        "_deferred_push_inbox": queue.Queue(),
        "_push_writer_wake": threading.Event(),
        "_push_writer_stop": threading.Event(),
        "_push_writer_thread": None,
        "consumer_notification_counts_by_req": defaultdict(int),
        "expected_consumer_notifications_by_req": {},
        "transfer_topo": Topology(),
        "_remote_agents": {ENGINE: {(0, 0): AGENT}},
        "_engine_last_active": {ENGINE: time.perf_counter()},
        "_engine_ttl": 3600.0,
        "_engine_by_address": {("host", 1): ENGINE},
        "_engine_clock_offset": {},
        "_failed_remote_engines": set(),
        "_invalid_remote_engines": set(),
        "_invalid_engine_backoff": {},
        "_remote_registration_generations": {},
        "_handshake_futures": {},
        "_handshake_lock": threading.RLock(),
        "_hb_handshake_notif_only": False,
        "dst_xfer_side_handles": defaultdict(dict),
        "kv_caches_base_addr": {},
        "dst_num_blocks": {},
        "dst_region_num_blocks": {},
        "dst_region_group_ids": {},
        "dst_uses_region_group_mapping": {},
        "dst_region_mem_types": {},
        "tp_mappings": {},
        "draft_tp_mappings": {},
        "src_xfer_handles_by_block_size": {},
        "src_xfer_handles_by_tp_ratio": {},
        "_dram_src_handles_by_tp_ratio": {},
        "_dram_src_handles_by_block_size": {},
        "_registered_descs": [],
        "_kv_unregistered": False,
        "device_kv_caches": {},
        "host_xfer_buffers": {},
        "engine_id": "engine-d",
        "tp_rank": 0,
        "world_size": 1,
        "dcp_size": 1,
        "pcp_rank": 0,
        "pcp_dcp_sharded": False,
        "use_host_buffer": False,
        "use_mla": False,
        "enable_permute_local_kv": False,
        "enable_heterogeneous_attn_post_process": False,
        "_physical_blocks_per_logical_kv_block": 1,
        "_is_hma_required": False,
        "_has_mamba": False,
        "_is_csa_linear": False,
        "_mixed_mem_types": False,
        "_uses_region_group_mapping": False,
        "_transfer_layer_group_ids": [],
        "_group_spec_types": [],
        "region_group_ids": [],
        "num_regions": 1,
        "_lease_extension": 20,
        "_bidirectional_kv_xfer_enabled": False,
    }


def receive(
    worker: Any, req_id: str, *handles: Any, blocks: tuple[int, ...] = (1, 2), engine: str = ENGINE
) -> None:
    """Have a request wait for its reads (with handles) or for its producer's writes (without)."""
    worker._recving_metadata[req_id] = meta_of(req_id, blocks, engine)
    if handles:
        worker._recving_transfers[req_id].extend(handles)


def meta_of(req_id: str, blocks: tuple[int, ...] = (1, 2), engine: str = ENGINE, **remote: Any) -> Any:
    """Return a request's metadata, as the scheduler sends it."""
    return ReqMeta(
        local_block_ids=(list(blocks),),
        local_physical_block_ids=(list(blocks),),
        tp_size=1,
        remote=RemoteMeta(
            block_ids=(list(blocks),),
            host="host",
            port=1,
            engine_id=engine,
            request_id=f"p-{req_id}",
            **remote,
        ),
    )


class Handshakes:
    """In place of vLLM's executor: notes with whom hands are to be shaken; they end as a test says."""

    def __init__(self, worker: Any) -> None:
        self.begun: list[str] = []
        self.futures: list[Future[Any]] = []
        worker._nixl_handshake = lambda *_: None
        worker._handshake_initiation_executor = self

    def submit(self, function: Any, *given: Any) -> Future[Any]:
        self.begun.append(given[3])
        self.futures.append(Future())
        return self.futures[-1]

    def shutdown(self, wait: bool) -> None:
        return None


def heartbeat(*req_ids: str, engine: str = ENGINE) -> Any:
    """Return metadata that has a worker send one heartbeat."""
    info = HeartbeatInfo(req_ids=set(req_ids), host="host", port=1, tp_size=1)
    return type("Metadata", (), {"heartbeat_by_engine": {engine: info}})


def registration(engine: str = ENGINE, host: str = "host", port: int = 1) -> dict[str, Any]:
    """Return what a decode registers with its producer, for its block 7."""
    return {
        "request_id": "d-r",
        "decode_engine_id": engine,
        "decode_host": host,
        "decode_port": port,
        "decode_tp_size": 1,
        "local_block_ids": [[7]],
    }


def packed(registration: dict[str, Any]) -> bytes:
    """Return a registration as a decode sends it, without its prefix."""
    encoded: bytes = msgspec.msgpack.encode(registration)
    return encoded


def sending(worker: Any, req_id: str, *handles: Any, lease_s: float = 60.0) -> None:
    """Have a request's WRITEs in flight, under a lease."""
    worker._reqs_to_process.add(req_id)
    worker._reqs_to_send[req_id] = time.perf_counter() + lease_s
    if handles:
        worker._sending_transfers[req_id].extend(handles)
