"""The command as a whole: what it lists, and the commands that come from elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import types

import click
import pytest
from click.testing import CliRunner

from kvfast import __version__, cli
from tests.cli.command import run_python


def test_help_and_version() -> None:
    told = CliRunner().invoke(cli.main, ["--help"])
    assert told.exit_code == 0
    for name in ("demo", "doctor", "soak"):
        assert f"\n  {name} " in told.output
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"kvfast, version {__version__}\n"


@pytest.mark.parametrize(("name", "module"), cli._ELSEWHERE.items())
def test_commands_from_elsewhere_are_there(name: str, module: str) -> None:
    assert importlib.util.find_spec(module) is not None
    told = CliRunner().invoke(cli.main, [name, "--help"])
    assert told.exit_code == 0
    assert "Exit status" in told.output


def test_they_are_loaded_when_they_are_asked_for_and_not_before() -> None:
    loaded = run_python("import sys, kvfast.cli; print(*sys.modules)").split()
    assert "kvfast.cli" in loaded
    assert not set(cli._ELSEWHERE.values()) & set(loaded)


def test_one_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli._ELSEWHERE, "gone", "kvfast.nowhere")
    told = CliRunner().invoke(cli.main, ["gone", "--any", "thing"])
    assert told.exit_code == 2
    assert told.stderr == "kvfast: gone can't be run here: there is no module kvfast.nowhere\n"
    assert (
        "Not installed: there is no module kvfast.nowhere." in CliRunner().invoke(cli.main, ["--help"]).output
    )


def test_one_that_lacks_another_package_names_that(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking(types.ModuleType):
        def __getattr__(self, name: str) -> click.Command:
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setitem(sys.modules, "kvfast.lacking", Lacking("kvfast.lacking"))
    monkeypatch.setitem(cli._ELSEWHERE, "lacking", "kvfast.lacking")
    told = CliRunner().invoke(cli.main, ["lacking"])
    assert told.exit_code == 2
    assert "there is no module matplotlib" in told.stderr


def test_one_that_is_broken_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvfast.empty", types.ModuleType("kvfast.empty"))
    monkeypatch.setitem(cli._ELSEWHERE, "empty", "kvfast.empty")
    told = CliRunner().invoke(cli.main, ["empty"])
    assert isinstance(told.exception, AttributeError)
