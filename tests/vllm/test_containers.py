"""The containers read and behave as the dicts of lists that vLLM and its tests expect."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvfast.testing import ScriptedAgent
from tests.vllm import rig


@pytest.fixture(params=["cython", "python"])
def worker(request: pytest.FixtureRequest) -> Any:
    return rig.make(rig.OURS["pull"], ScriptedAgent(), backend=request.param)


def in_flight(worker: Any, *states: str) -> list[Any]:
    agent = worker.nixl_wrapper
    handles = [agent.prepare() for _ in states]
    for handle, state in zip(handles, states):
        agent.transfer(handle)
        agent.set_state(handle, state)
    return handles


def test_a_dict_of_lists(worker: Any) -> None:
    transfers = worker._recving_transfers
    a, b, c = in_flight(worker, "PROC", "PROC", "PROC")
    assert transfers == {}
    assert not transfers
    transfers["r"].append(a)
    assert transfers.setdefault("r", []) == [a]
    assert transfers.setdefault("s", []) == []
    transfers["s"] = [b]
    transfers["s"].extend([c])
    assert transfers == {"r": [a], "s": [b, c]}
    assert list(transfers) == ["r", "s"]
    assert [list(handles) for handles in transfers.values()] == [[a], [b, c]]
    assert ("r" in transfers, "t" in transfers, len(transfers)) == (True, False, 2)
    assert transfers.get("t") is None
    assert "t" not in transfers
    assert transfers["s"][0] == b
    assert transfers.pop("s") == [b, c]
    del transfers["r"]
    assert transfers == {}
    with pytest.raises(KeyError):
        del transfers["r"]
    transfers.update({"r": [a], "s": [b, c]})
    transfers.clear()
    assert transfers == {}
    assert worker.nixl_wrapper.released == []  # whoever clears has them


def test_what_is_taken_out_is_not_polled(worker: Any) -> None:
    kept, taken = in_flight(worker, "DONE", "DONE")
    worker._recving_transfers.update({"r": [kept], "s": [taken]})
    del worker._recving_transfers["s"]
    assert worker._pop_done_transfers(worker._recving_transfers) == ({"r"}, set())
    assert worker.nixl_wrapper.released == [kept]


def test_a_list_shows_what_is_outstanding(worker: Any) -> None:
    done, proc = in_flight(worker, "DONE", "PROC")
    worker._recving_transfers["r"] = [done, proc]
    assert worker._pop_done_transfers(worker._recving_transfers) == (set(), set())
    assert worker._recving_transfers == {"r": [proc]}


@pytest.mark.parametrize("kind", [dict, lambda items: defaultdict(list, items)])
def test_any_dict_of_lists_can_be_polled(worker: Any, kind: Any) -> None:
    done, proc, failed, lost = in_flight(worker, "DONE", "PROC", "BACKEND", "NOT_FOUND")
    transfers = kind({"empty": [], "done": [done], "proc": [proc], "failed": [failed], "lost": [lost]})
    assert worker._pop_done_transfers(transfers) == ({"empty", "done", "failed"}, {"failed", "lost"})
    assert transfers == {"proc": [proc], "lost": [lost]}
    (late,) = in_flight(worker, "DONE")
    transfers["proc"].append(late)
    assert worker._pop_done_transfers(transfers) == (set(), set())  # and lost is told once
    assert transfers == {"proc": [proc], "lost": [lost]}
    worker.nixl_wrapper.set_state(proc, "DONE")
    assert worker._pop_done_transfers(transfers) == ({"proc"}, set())


def test_handles_of_any_kind(worker: Any) -> None:
    class Agent:
        released: list[Any] = []  # noqa: RUF012

        def check_xfer_state(self, handle: Any) -> str:
            return "DONE"

        def get_xfer_telemetry(self, handle: Any) -> None:
            return None

        def release_xfer_handle(self, handle: Any) -> None:
            self.released.append(handle)

    worker.nixl_wrapper = Agent()
    transfers: dict[str, list[Any]] = {"r": ["a", 1, 1], "s": [1, None]}
    assert worker._pop_done_transfers(transfers) == ({"r", "s"}, set())
    assert sorted(map(str, Agent.released)) == ["1", "1", "1", "None", "a"]
    assert transfers == {}


def test_a_worker_that_never_ran_its_constructor() -> None:
    agent = ScriptedAgent()
    worker: Any = object.__new__(rig.OURS["pull"])
    worker.nixl_wrapper = agent
    worker.xfer_stats = rig.NixlKVConnectorStats()
    handle = agent.prepare()
    agent.transfer(handle)
    agent.set_state(handle, "DONE")
    worker._recving_transfers = {"r": [handle]}
    assert worker._pop_done_transfers(worker._recving_transfers) == ({"r"}, set())
    assert worker._recving_transfers == {}
    failed = agent.prepare()
    agent.set_state(failed, "BACKEND")
    assert worker._try_release_xfer_handle("r", failed)


def test_a_handle_in_flight_is_not_released_for_a_failed_start(worker: Any) -> None:
    proc, failed = in_flight(worker, "PROC", "BACKEND")
    worker._log_failure = lambda **_: None
    assert not worker._try_release_xfer_handle("r", proc)
    assert worker._try_release_xfer_handle("r", failed)
    assert worker.nixl_wrapper.released == [failed]
    worker.nixl_wrapper.assert_clean()
