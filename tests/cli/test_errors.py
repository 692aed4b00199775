"""What the command says when it can't do what it was asked for."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvfast import cli


def test_an_error_is_told_in_words_on_stderr_and_as_json_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVFAST_BACKEND", "swift")
    told = CliRunner().invoke(cli.main, ["demo"])
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith("kvfast: ")
    assert "'swift'" in told.stderr
    told = CliRunner().invoke(cli.main, ["demo", "--json"])
    assert told.exit_code == 2
    assert "'swift'" in json.loads(told.stdout)["error"]
