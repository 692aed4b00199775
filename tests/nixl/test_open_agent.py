"""open_agent on real NIXL: what the agent was made with, and that it does transfers."""

from __future__ import annotations

import importlib
import inspect
import threading
from typing import Any

import pytest

from kvfast import BackendUnavailableError, open_agent
from tests.nixl.rank import Decode, Rank, nixl_missing

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")

SYNC_VALUES = {"none": 0, "strict": 1, "rw": 2}


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")


@pytest.fixture
def api() -> Any:
    return importlib.import_module("nixl._api")


@pytest.fixture
def configs(api: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the C++ configurations that agents are made with, as NIXL's binding is given them."""
    seen: list[Any] = []
    make = api.nixlBind.nixlAgent

    def recording(name: str, config: Any) -> Any:
        seen.append(config)
        return make(name, config)

    monkeypatch.setattr(api.nixlBind, "nixlAgent", recording)
    return seen


def test_agent_is_nixls_own_with_rw_lock_and_telemetry(api: Any, configs: list[Any]) -> None:
    agent: Any = open_agent("agent")
    assert type(agent) is api.nixl_agent
    assert agent.name == "agent"
    assert list(agent.backends) == ["UCX"]
    (config,) = configs
    assert int(config.syncMode) == SYNC_VALUES["rw"]
    assert config.captureTelemetry is True
    assert config.useProgThread is True


@pytest.mark.parametrize("mode", sorted(SYNC_VALUES))
def test_every_sync_mode_reaches_nixl(mode: str, configs: list[Any]) -> None:
    open_agent("agent", sync_mode=mode)
    assert [int(config.syncMode) for config in configs] == [SYNC_VALUES[mode]]


def test_options_reach_nixl(configs: list[Any]) -> None:
    agent: Any = open_agent("agent", telemetry=False, progress_thread=False, num_threads=2)
    (config,) = configs
    assert config.captureTelemetry is False
    assert config.useProgThread is False
    assert agent.backend_options["UCX"]["num_threads"] == "2"


def test_nixl_itself_is_not_changed(api: Any, configs: list[Any]) -> None:
    before = (api.nixl_agent.__init__, api.nixlBind, dict(vars(api.nixlBind)), dict(vars(api)))
    open_agent("agent")
    assert (api.nixl_agent.__init__, api.nixlBind, dict(vars(api.nixlBind)), dict(vars(api))) == before
    # An agent that is made without kvfast afterwards gets NIXL's own default.
    api.nixl_agent("other", api.nixl_agent_config(backends=["UCX"]))
    assert [int(config.syncMode) for config in configs] == [SYNC_VALUES["rw"], SYNC_VALUES["none"]]


def test_two_agents_do_not_share_state() -> None:
    one: Any = open_agent("one")
    two: Any = open_agent("two")
    for name, value in vars(one).items():
        if isinstance(value, dict | list):
            assert value is not vars(two)[name], name


def test_a_backend_without_plugin_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(BackendUnavailableError, match=r"no backend NOSUCH; it has .*UCX"):
        open_agent("agent", backends=("UCX", "NOSUCH"))


def test_a_backend_that_does_not_start_is_an_error_that_names_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "nosuchdevice")
    with pytest.raises(BackendUnavailableError, match=r"'agent' with UCX.*UCX_NET_DEVICES=nosuchdevice"):
        open_agent("agent")


def test_telemetry_of_a_read() -> None:
    with Rank(0, blocks=8) as rank, Decode(blocks=8) as decode:
        decode.connect(rank)
        handle = decode.read(rank, remote_block=3, local_block=1, n_blocks=2, notif=b"r:1")
        assert decode.wait(handle) == ["DONE"]
        assert (decode.memory[1:3] == rank.expected(3, 2)).all()
        assert decode.agent.get_xfer_telemetry(handle).totalBytes == 2 * decode.block_bytes
        assert rank.wait_notifs(1) == {"decode": [b"r:1"]}


def test_one_thread_posts_while_another_polls() -> None:
    with Rank(0) as rank, Decode() as decode:
        decode.connect(rank)
        posted: list[Any] = []
        first = threading.Event()
        ended = threading.Event()

        def post() -> None:
            for block in range(decode.blocks):
                posted.append(decode.read(rank, block, block))
                first.set()
            ended.set()

        writer = threading.Thread(target=post)
        writer.start()
        assert first.wait(30)
        while not ended.is_set():
            assert decode.state(posted[-1]) in ("PROC", "DONE")
        writer.join()
        assert decode.wait(*posted) == ["DONE"] * decode.blocks
        assert (decode.memory == rank.expected(0, decode.blocks)).all()


def test_the_way_of_old_nixl_is_taken_only_where_it_must(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_module = importlib.import_module("kvfast.agent")
    taken: list[int] = []
    old_way = agent_module._make_before_sync_mode

    def recording(api: Any, name: str, config: Any, sync_value: int) -> Any:
        taken.append(sync_value)
        return old_way(api, name, config, sync_value)

    monkeypatch.setattr(agent_module, "_make_before_sync_mode", recording)
    open_agent("agent")
    knows_sync_mode = "sync_mode" in inspect.signature(api.nixl_agent_config).parameters
    assert taken == ([] if knows_sync_mode else [SYNC_VALUES["rw"]])
