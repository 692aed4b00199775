"""Which backend runs: by argument, by environment, by what is installed; in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvfast_ext
from kvfast_ext import BackendUnavailableError, cython_available, select_backend

ROOT = Path(kvfast_ext.__file__).parent.parent
CYTHON, PYTHON = "kvfast_ext.cython_backend", "kvfast_ext.python_backend"
SHOW = """
import kvfast_ext
for arguments in {arguments!r}:
    try:
        print(kvfast_ext.select_backend(*arguments).__name__)
    except Exception as error:
        print(type(error).__name__, error)
"""


def run(code: str, where: Path, **environ: str) -> list[str]:
    """Run code with the packages of a folder, and return the lines that it prints."""
    env = {name: value for name, value in os.environ.items() if name != "KVFAST_BACKEND"}
    code = f"import sys; sys.path.insert(0, {str(where)!r})\n{code}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env | environ, capture_output=True, text=True, timeout=300, cwd=where)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def chosen(where: Path, *arguments: tuple[str, ...], **environ: str) -> list[str]:
    """Return for each choice the backend's name, or the error."""
    return run(SHOW.format(arguments=arguments), where, **environ)


def copy_packages(target: Path, *, compiled: bool) -> Path:
    for package in ("kvfast", "kvfast_ext"):
        ignored = shutil.ignore_patterns("__pycache__", *([] if compiled else ["*.so", "*.pyd"]))
        shutil.copytree(ROOT / package, target / package, ignore=ignored)
    return target


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages without compiled modules."""
    return copy_packages(tmp_path_factory.mktemp("pure"), compiled=False)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A copy with compiled modules."""
    if not cython_available():
        pytest.skip("the cython backend is not built")
    return copy_packages(tmp_path, compiled=True)


AUTO: tuple[tuple[str, ...], ...] = ((), ("auto",))


def test_auto_prefers_cython(built: Path) -> None:
    assert chosen(built, *AUTO, ("cython",), ("python",)) == [CYTHON, CYTHON, CYTHON, PYTHON]


@pytest.mark.parametrize("value", ["python", "cython", "auto", ""])
def test_the_environment_is_asked_by_auto_only(built: Path, value: str) -> None:
    asked = PYTHON if value == "python" else CYTHON
    names = chosen(built, *AUTO, ("cython",), ("python",), KVFAST_BACKEND=value)
    assert names == [asked, asked, CYTHON, PYTHON]


def test_auto_falls_back_where_the_extension_is_absent(pure: Path) -> None:
    *names, error = chosen(pure, *AUTO, ("python",), ("cython",))
    assert names == [PYTHON] * 3
    assert error.startswith("BackendUnavailableError")
    assert "KVFAST_BUILD_EXT=yes" in error  # what to do about it


def test_cython_by_the_environment_where_it_is_absent(pure: Path) -> None:
    (error,) = chosen(pure, (), KVFAST_BACKEND="cython")
    assert error.startswith("BackendUnavailableError")


@pytest.mark.parametrize("module", ["_native", "_store"])
@pytest.mark.parametrize("how", ["rubbish", "empty", "missing", "symbol"])
def test_a_broken_extension_raises_under_auto(built: Path, module: str, how: str) -> None:
    (library,) = (built / "kvfast_ext" / "cython_backend").glob(f"{module}.*.so")
    if how == "missing":
        library.unlink()  # the other one is there: a broken installation, not one without
    elif how == "symbol":
        init = module.encode()
        library.write_bytes(library.read_bytes().replace(b"PyInit_" + init, b"PyOops_" + init))
    else:
        library.write_bytes(b"" if how == "empty" else b"not an ELF file" * 100)
    *errors, name = chosen(built, *AUTO, ("cython",), ("python",))
    assert [error.split()[0] in ("ImportError", "ModuleNotFoundError") for error in errors] == [True] * 3
    assert name == PYTHON


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("raise RuntimeError('inside')", "RuntimeError inside"),
        ("__all__.append('more'); more = 1", "exports"),
    ],
)
def test_a_backend_that_fails_in_python_raises_under_auto(built: Path, more: str, words: str) -> None:
    init = built / "kvfast_ext" / "cython_backend" / "__init__.py"
    init.write_text(f"{init.read_text()}\n{more}\n")
    errors = chosen(built, *AUTO, ("cython",))
    assert [error for error in errors if words not in error] == []
    assert len(errors) == 3


@pytest.mark.parametrize("name", ["fast", "Cython", "cython ", "c"])
def test_unknown_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="auto, cython, python") as raised:
        select_backend(name)
    assert repr(name) in str(raised.value)
    monkeypatch.setenv("KVFAST_BACKEND", name)
    with pytest.raises(ValueError, match="KVFAST_BACKEND must be one of auto, cython, python") as raised:
        select_backend()
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("name", [None, 5, b"python", ["python"]], ids=repr)
def test_names_that_are_no_strings(name: object) -> None:
    with pytest.raises(TypeError, match="backend must be a str"):
        select_backend(name)  # type: ignore[arg-type]


def test_nothing_is_loaded_before_it_is_chosen(built: Path) -> None:
    code = (
        "import kvfast, kvfast_ext\n"
        "print([m for m in sys.modules if m.startswith(('kvfast_ext.cython_b', 'kvfast_ext.python_b',"
        " 'nixl', 'torch', 'vllm'))])"
    )
    assert run(code, built, KVFAST_BACKEND="python") == ["[]"]


def test_kvfast_says_which(pure: Path, built: Path) -> None:
    code = "import kvfast; print(kvfast.BACKEND)"
    assert [run(code, pure), run(code, built)] == [["python"], ["cython"]]
    assert run(code, built, KVFAST_BACKEND="python") == ["python"]


def test_the_python_backend_needs_no_compiled_module(pure: Path) -> None:
    code = """
import kvfast_ext as k
b = k.select_backend(); a = k.SimulatedAgent(2); t = b.TransferTable(b.bind(a)); t.add("r", 0, 1)
a.states[:] = 0
print(b.pop_done_transfers(t).done, a.released.tolist(), [m for m in sys.modules if "cython_backend" in m])
"""
    assert run(code, pure) == ["{'r'} [1, 1] []"]


def test_the_error_is_importable_by_its_name() -> None:
    assert issubclass(BackendUnavailableError, kvfast_ext.KvfastError)
