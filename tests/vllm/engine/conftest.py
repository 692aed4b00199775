"""Real vLLM servers on this machine's CPU. Collected only when asked: KVFAST_VLLM_ENGINE=1.

A pair of servers serves all tests of its setup, and only one pair runs at a time: it takes 5 GB and
a minute to start. KVFAST_VLLM_ENGINE_LOGS names a folder to keep the servers' logs in.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engine import site_folder, tiny_model
from tests.vllm.engine.figures import Figures, Run
from tests.vllm.engine.pair import Pair, Role
from tests.vllm.engine.prompts import Prompt, PromptBook, make_reference
from tests.vllm.engine.server import Launch, Server
from tests.vllm.engine.setups import SETUPS, Setup

if os.environ.get("KVFAST_VLLM_ENGINE") != "1":
    collect_ignore_glob = ["test_*.py"]

_FIGURES = pytest.StashKey[Figures]()
_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = Figures()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests of one setup run one after the other, those that kill a server last."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    places = [index for index, item in enumerate(items) if item in here]
    for place, item in zip(places, sorted(here, key=_turn)):
        items[place] = item


def _turn(item: pytest.Item) -> tuple[int, bool]:
    if not hasattr(item, "callspec"):
        return -1, False
    return SETUPS.index(item.callspec.params["setup"]), "prefill_is_killed" in item.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    figures = config.stash[_FIGURES]
    if figures.runs:
        terminalreporter.section("runs")
        for line in figures.table():
            terminalreporter.line(line)


# ---- servers


class Starter:
    """Starts servers, each with a log of its own."""

    def __init__(self, folder: Path) -> None:
        self._model = tiny_model.write_model(folder / "model")
        self._site = site_folder.write_site(folder / "site")
        self._plugin = site_folder.write_plugin_site(folder / "plugin")
        self._logging = site_folder.write_logging(folder / "logging.json")
        logs = os.environ.get("KVFAST_VLLM_ENGINE_LOGS")
        self._logs = Path(logs) if logs else folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count()

    def alone(self) -> Server:
        """Start an engine that transfers nothing."""
        return Server(self._launch("reference", (self._site,)))

    def one_of_pair(self, setup: Setup, role: Role) -> Server:
        """Start a prefill or a decode."""
        site, env = (self._site,), {"VLLM_PLUGINS": ""}  # the module's path must do, alone
        if setup.chosen == "name":
            site, env = (self._site, *(() if site_folder.plugin_is_installed() else (self._plugin,))), {}
        return Server(
            self._launch(
                f"{setup.name} {role}",
                site,
                transfer=setup.transfer_config(role),
                tensor_parallel=setup.prefill_ranks if role == "prefill" else 1,
                env=env,
            )
        )

    def _launch(self, name: str, site: tuple[Path, ...], **others: Any) -> Launch:
        words = name.replace(",", "").replace(" ", "-")
        log = self._logs / f"{next(self._numbers):02}-{words}.log"
        log.write_text("")
        return Launch(name, self._model, site, self._logging, log, **others)


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    return Starter(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="session")
def reference(starter: Starter) -> list[tuple[Prompt, Prompt]]:
    """Prompts with the outputs of a single engine, which has ended."""
    server = starter.alone()
    try:
        server.wait_until_ready()
        return make_reference(server)
    finally:
        server.end()


class RunningPair:
    """The one pair that runs."""

    def __init__(self, starter: Starter, reference: list[tuple[Prompt, Prompt]]) -> None:
        self._starter = starter
        self._reference = reference
        self._pair: Pair | None = None

    def of(self, setup: Setup) -> Pair:
        """Return the pair of a setup, started if it is another one's turn."""
        if self._pair is None or self._pair.setup is not setup:
            self.end()
            self._pair = Pair(setup, PromptBook(self._reference), self._starter.one_of_pair)
            self._pair.wait_until_ready()
        return self._pair

    def end(self) -> None:
        """End it."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.end()


@pytest.fixture(scope="session")
def running_pair(starter: Starter, reference: list[tuple[Prompt, Prompt]]) -> Iterator[RunningPair]:
    running = RunningPair(starter, reference)
    yield running
    running.end()


@pytest.fixture
def pair(request: pytest.FixtureRequest, setup: Setup, running_pair: RunningPair) -> Iterator[Pair]:
    """The pair of a test's setup. One that has failed a test is not used again."""
    try:
        pair = running_pair.of(setup)
    except BaseException:
        running_pair.end()
        raise
    yield pair
    if request.node.stash.get(_FAILED, False):
        running_pair.end()


@pytest.fixture
def new_run(request: pytest.FixtureRequest, setup: Setup) -> Callable[[str], Run]:
    """Begin a line of the figures."""
    figures = request.config.stash[_FIGURES]
    return lambda name: figures.run(setup.name, name)
