"""Run vLLM's own unit tests of its NIXL connector, with its workers and with kvfast's in their place.

    python tests/vllm/run_upstream.py PATH [FILE...]

PATH is where vLLM's source distribution was unpacked: the folder that holds its ``tests`` and, since
that would be imported in place of the installed one, no ``vllm``. Each file is run twice, in processes
of their own. Printed is how many tests passed with which, and how often each of kvfast's overrides was
called: passes without calls prove nothing. The exit status is 1 if fewer pass with kvfast's.

The tests ask for configurations of models by their public names, and for no weights. The runner writes
such configurations itself, with the defaults of the model's class, so that nothing is downloaded.

UPSTREAM_ARGS are further arguments for pytest; with UPSTREAM_TB=short pytest's output is shown. Two tests of
test_nixl_connector.py start a whole engine, and fail without weights: UPSTREAM_ARGS="-k abort_timeout" and
--engine run them on a CPU with a tiny model in place of the one they name (one of the two needs Ray).
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

UNIT = "tests/v1/kv_connector/unit"
FILES = (
    "test_nixl_connector.py",
    "test_nixl_push_connector.py",
    "test_nixl_connector_hma.py",
    "test_nixl_desc_geometry.py",
    "test_nixl_heartbeat.py",
    "test_bidirectional_kv_transfer.py",
)
MARK = "upstream-result "
MODELS = {
    "facebook/opt-125m": ("OPTConfig", "OPTForCausalLM"),
    "facebook/opt-350m": ("OPTConfig", "OPTForCausalLM"),
    "google/gemma-3-1b-it": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "Qwen/Qwen3-0.6B": ("Qwen3Config", "Qwen3ForCausalLM"),
}
WITH_WEIGHTS = "Qwen/Qwen3-0.6B"
ENGINE_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
# These patch what stands behind the stock class in its ``__mro__``: the name must be the stock class's.
NEEDS_STOCK_NAME = {"test_nixl_push_connector": "NixlPushConnectorWorker"}


class Plugin:
    """The pytest plugin of one run."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.failed: list[str] = []
        self.calls: collections.Counter[str] = collections.Counter()
        self.stock: dict[str, Any] = {}

    def replace_workers(self) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl import (
            connector,
            pull_worker,
            push_worker,
            worker,
        )

        from kvfast.vllm.engines import KvfastEnginesMixin
        from kvfast.vllm.pull import KvfastNixlPullConnectorWorker
        from kvfast.vllm.push import KvfastNixlPushConnectorWorker
        from kvfast.vllm.registrations import KvfastRegistrationsMixin
        from kvfast.vllm.worker import KvfastWorkerMixin

        self.stock["NixlPushConnectorWorker"] = push_worker.NixlPushConnectorWorker
        for module in (nixl, connector, pull_worker, push_worker, worker):
            for names, cls in (
                (("NixlPullConnectorWorker", "NixlConnectorWorker"), KvfastNixlPullConnectorWorker),
                (("NixlPushConnectorWorker",), KvfastNixlPushConnectorWorker),
            ):
                for name in names:
                    if hasattr(module, name):
                        setattr(module, name, cls)
        mixins = (KvfastWorkerMixin, KvfastEnginesMixin, KvfastRegistrationsMixin)
        for ours in (*mixins, KvfastNixlPullConnectorWorker, KvfastNixlPushConnectorWorker):
            self.count_calls(ours)

    def count_calls(self, cls: type) -> None:
        for name, function in list(vars(cls).items()):
            if isinstance(function, types.FunctionType) and not name.startswith("_kvfast"):
                setattr(cls, name, self.counting(f"{cls.__name__}.{name}", function))

    def counting(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return function(*args, **kwargs)

        return call

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if not self.ours:
            return
        for module in {item.module for item in items}:
            name = NEEDS_STOCK_NAME.get(module.__name__.rpartition(".")[2])
            if name is not None:
                setattr(module, name, self.stock[name])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
            if report.failed:
                self.failed.append(report.nodeid.rpartition("/")[2])


def stand_in_ray() -> None:
    """Let test files that begin with ``import ray`` be collected without it."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        sys.modules["ray"] = types.ModuleType("ray")


def write_models(home: Path) -> None:
    """Lay out configurations as the Hub's client keeps what it has fetched."""
    transformers = importlib.import_module("transformers")

    for name, (cls, architecture) in MODELS.items():
        config = getattr(transformers, cls)(architectures=[architecture])
        folder = home / "hub" / ("models--" + name.replace("/", "--"))
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text("0" * 40)
        config.save_pretrained(folder / "snapshots" / ("0" * 40))


def prepare_engine(home: Path) -> None:
    """Lay out what an engine on a CPU needs: weights, and vLLM's CPU build found under vLLM's own name."""
    folder = home / "hub" / ("models--" + WITH_WEIGHTS.replace("/", "--")) / "snapshots" / ("0" * 40)
    importlib.import_module("engine.tiny_model").write_model(folder)  # beside this script
    version = importlib.metadata.version("vllm-cpu")
    info = home / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def run_one(file: str, ours: bool) -> None:
    import pytest

    stand_in_ray()
    plugin = Plugin(ours)
    if ours:
        plugin.replace_workers()
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull]
    options += ["--rootdir", os.getcwd(), "--tb", os.environ.get("UPSTREAM_TB", "no")]
    options += shlex.split(os.environ.get("UPSTREAM_ARGS", ""))
    pytest.main([*options, f"{UNIT}/{file}"], plugins=[plugin])
    print(MARK + json.dumps([plugin.outcomes, plugin.failed, plugin.calls]), flush=True)


def run_file(
    root: Path, home: str, file: str, ours: bool
) -> tuple[dict[str, int], list[str], dict[str, int]]:
    script = str(Path(__file__).resolve())
    command = [sys.executable, script, str(root), file, "--one", "ours" if ours else "stock"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), home, os.environ.get("PYTHONPATH", "")]),
        "PYTHONSAFEPATH": "1",
        "PYTHONWARNINGS": "ignore",
        "UCX_TLS": "tcp",
        "HF_HOME": home,
        "HF_HUB_OFFLINE": "1",
        **ENGINE_ENV,
    }
    done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if os.environ.get("UPSTREAM_TB"):
        print(done.stdout)
    if not lines:
        raise SystemExit(f"{file} gave no result:\n{done.stdout[-4000:]}")
    outcomes, failed, calls = json.loads(lines[-1].removeprefix(MARK))
    return outcomes, failed, calls


def compare(root: Path, home: str, file: str, only: str | None) -> bool:
    """Run a file with both, or with one of them, and print what came of it."""
    if only is not None:
        outcomes, failed, calls = run_file(root, home, file, ours=only == "ours")
        print(
            f"{file}: {only} {outcomes}, failed {failed}; {sum(calls.values())} calls of overrides",
            flush=True,
        )
        return not failed
    stock, stock_failed, _ = run_file(root, home, file, ours=False)
    ours, ours_failed, calls = run_file(root, home, file, ours=True)
    print(f"{file}: stock {stock}, ours {ours}; {sum(calls.values())} calls of overrides")
    for name, count in sorted(calls.items()):
        print(f"    {count:6d}  {name}")
    for test in ours_failed:
        print(f"    failed with ours{'' if test not in stock_failed else ' and with stock'}: {test}")
    sys.stdout.flush()
    return ours.get("passed", 0) >= stock.get("passed", 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("files", nargs="*", default=list(FILES))
    parser.add_argument("--only", choices=("stock", "ours"), help="run with one of them, and compare nothing")
    parser.add_argument("--engine", action="store_true", help="for tests that start an engine, on a CPU")
    parser.add_argument("--one", choices=("stock", "ours"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one(args.files[0], args.one == "ours")
        return 0
    with tempfile.TemporaryDirectory() as home:
        write_models(Path(home))
        if args.engine:
            prepare_engine(Path(home))
        results = [compare(args.path.resolve(), home, file, args.only) for file in args.files]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
