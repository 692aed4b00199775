"""One contract: both backends export the same names with the same signatures and results."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvfast_ext
from kvfast_ext import BACKEND_EXPORTS, SimulatedAgent, backend_name, select_backend
from kvfast_ext.contract import check_backend

EXPORTS = ("TransferTable", "bind", "pop_done_transfers", "try_release")


def test_exactly_the_contracts_names(backend: ModuleType) -> None:
    assert tuple(sorted(backend.__all__)) == EXPORTS == BACKEND_EXPORTS
    assert backend_name(backend) == backend.__name__.removeprefix("kvfast_ext.").removesuffix("_backend")


@pytest.fixture
def twins(compiled: ModuleType) -> tuple[ModuleType, ModuleType]:
    return compiled, select_backend("python")


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults of a function's parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize("name", EXPORTS)
def test_same_signatures(twins: tuple[ModuleType, ModuleType], name: str) -> None:
    compiled, plain = (getattr(module, name) for module in twins)
    assert shape(compiled) == shape(plain)
    assert inspect.getdoc(compiled)
    assert inspect.getdoc(plain)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_same_tables(twins: tuple[ModuleType, ModuleType]) -> None:
    compiled, plain = (module.TransferTable for module in twins)
    assert public(compiled) == public(plain)
    for name in public(plain):
        if callable(getattr(plain, name)):
            assert shape(getattr(compiled, name)) == shape(getattr(plain, name)), name
    assert shape(compiled.__init__) == shape(plain.__init__)


def test_ops_show_the_same(twins: tuple[ModuleType, ModuleType]) -> None:
    agent = SimulatedAgent(1)
    for ops in (module.bind(agent) for module in twins):
        assert ops.kind == "simulated"
        assert ops.agent is agent
        assert ops.reason


def test_same_stores(twins: tuple[ModuleType, ModuleType]) -> None:
    compiled, plain = (module.TransferTable._store_type for module in twins)
    assert public(plain) <= public(compiled) | {"in_flight"}
    assert public(compiled) - public(plain) <= {"nbytes", "in_flight"}


@pytest.mark.parametrize("module", ["_native", "_store"])
def test_stubs_name_what_the_compiled_modules_have(compiled: ModuleType, module: str) -> None:
    loaded = importlib.import_module(f"{compiled.__name__}.{module}")
    stub = Path(kvfast_ext.__file__).parent / "cython_backend" / f"{module}.pyi"
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            assert [p.arg for p in node.args.args] == list(
                inspect.signature(getattr(loaded, node.name)).parameters
            )
        if isinstance(node, ast.ClassDef):
            written = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            missing = {name for name in written if not hasattr(getattr(loaded, node.name), name)}
            assert missing == set()


def test_a_result_has_the_documented_fields() -> None:
    names = [field.name for field in dataclasses.fields(kvfast_ext.SweepResult)]
    assert {"done", "failed", "failures", "transfers", "retained"} <= set(names)
    failure = [field.name for field in dataclasses.fields(kvfast_ext.HandleFailure)]
    assert failure[:4] == ["req_id", "handle", "status", "error"]
    transfers = [field.name for field in dataclasses.fields(kvfast_ext.Transfers)]
    assert transfers[:4] == ["xfer_us", "post_us", "bytes", "descriptors"]


@pytest.mark.parametrize(
    "names", [["bind"], [*EXPORTS, "more"], [], ["TransferTable", "bind", "pop_done_transfers", "try"]]
)
def test_a_module_with_other_names_is_no_backend(names: list[str]) -> None:
    module = ModuleType("kvfast_ext.other_backend")
    module.__all__ = names  # type: ignore[attr-defined]
    for name in names:
        setattr(module, name, None)
    with pytest.raises(ImportError, match="other_backend exports"):
        check_backend(module)


def test_a_module_that_only_claims_the_names_is_no_backend() -> None:
    module = ModuleType("kvfast_ext.other_backend")
    module.__all__ = list(EXPORTS)  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="other_backend exports"):
        check_backend(module)


def test_all_that_is_exported_is_there() -> None:
    assert [name for name in kvfast_ext.__all__ if not hasattr(kvfast_ext, name)] == []
    assert kvfast_ext.__all__ == sorted(
        kvfast_ext.__all__, key=lambda name: (not name.isupper(), name.islower(), name)
    )
