"""Options, versions, registration, and what is told at the start."""

from __future__ import annotations

from typing import Any

import pytest

from kvfast.vllm.options import Options
from kvfast.vllm.versions import VERSIONS, UnsupportedVllmError, VllmVersion, check_vllm


def test_options_are_read_and_the_rest_is_left_alone() -> None:
    given = {"kvfast_scan": "all", "kvfast_lost_s": 3, "kvfast_stall_after_s": 2.5, "num_threads": 8}
    assert Options.read(given) == Options(scan="all", lost_s=3, stall_after_s=2.5)
    assert Options.read(None) == Options.read({}) == Options()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kvfast_backnd": "cython"}, "kvfast_backnd"),
        ({"kvfast_backend": "rust"}, "rust"),
        ({"kvfast_scan": "never"}, "never"),
        ({"kvfast_scan": ["all"]}, "all"),
        ({"kvfast_lost_s": -1}, "kvfast_lost_s"),
        ({"kvfast_lost_s": "30"}, "30"),
        ({"kvfast_lost_s": float("nan")}, "nan"),
        ({"kvfast_stall_after_s": 0}, "kvfast_stall_after_s"),
        ({"kvfast_stall_after_s": True}, "True"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        Options.read(given)


@pytest.mark.parametrize("found", ["0.30.1", "0.34.0", "1.32.0", "dev"])
def test_another_vllm_is_named(found: str) -> None:
    with pytest.raises(UnsupportedVllmError, match=found) as caught:
        check_vllm(found)
    assert all(f"{major}.{minor}" in str(caught.value) for major, minor in VERSIONS)


def test_no_vllm_is_named_too() -> None:
    with pytest.raises(UnsupportedVllmError, match="vLLM is not installed"):
        check_vllm("none")


@pytest.mark.parametrize("found", ["0.31.0", "0.32.0+cpu", "0.32.1rc2", "0.33.0.post1"])
def test_a_supported_vllm(found: str) -> None:
    assert check_vllm(found) in VERSIONS.values()


def test_the_installed_vllm_is_as_the_table_says() -> None:
    pytest.importorskip("vllm")
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import RemoteMeta
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    assert check_vllm() == VllmVersion(
        marks_invalid_engines=hasattr(NixlBaseConnectorWorker, "_mark_remote_engine_invalid"),
        counts_late_notifs=hasattr(NixlKVConnectorStats, "record_notification_after_expiry"),
        registration_generations=hasattr(RemoteMeta, "registration_generation"),
    )


def test_hma_stays_supported() -> None:
    pytest.importorskip("vllm")
    from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma

    import kvfast.vllm

    assert supports_hma(kvfast.vllm.KvfastNixlPullConnector)
    assert supports_hma(kvfast.vllm.KvfastNixlPushConnector)
    assert kvfast.vllm.KvfastNixlConnector is kvfast.vllm.KvfastNixlPullConnector
