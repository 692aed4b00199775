"""Export of `Stats` to Prometheus. Nothing is done for it until somebody scrapes.

``prometheus_client`` is asked for when an exporter is made, never before: kvfast runs without it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from kvfast_ext.errors import BackendUnavailableError

from .histogram import HistogramSnapshot
from .metric_names import INFO_HELP, INFO_LABELS, METRICS, PREFIX, Metric, prometheus_name

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

    from .stats import Stats

_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_TAKEN_LABELS: Final = frozenset({"role", "le", "quantile", *INFO_LABELS})


@dataclass(frozen=True, slots=True)
class _Source:
    stats: Stats
    labels: Mapping[str, str]  # role first, then the user's


class PrometheusExporter:
    """A collector of ``prometheus_client`` over any number of `Stats`.

    It has a registry of its own, which `text` and `serve` show. To export beside other metrics,
    register it where they are: ``prometheus_client.REGISTRY.register(exporter)``.

    Raises
    ------
    BackendUnavailableError
        If ``prometheus_client`` is not installed.
    """

    def __init__(self) -> None:
        self._client: Final = _client()
        self._lock: Final = threading.Lock()
        self._sources: tuple[_Source, ...] = ()
        self.registry: Final[CollectorRegistry] = self._client.CollectorRegistry()
        self.registry.register(self)

    def add(self, stats: Stats, *, role: str, labels: Mapping[str, str] | None = None) -> None:
        """Export a Stats from now on.

        Parameters
        ----------
        role : str
            Value of the label ``role``: ``"receiver"``, ``"sender"``, or what the caller calls it.
        labels : mapping, optional
            More labels. What one Stats has and another has not is empty for the other, which means
            the same as absent to Prometheus.

        Raises
        ------
        TypeError
            If `stats` is not a `Stats`, or a label is not a str.
        ValueError
            If `role` is empty, a label's name is not one or is taken, or a Stats with equal labels
            is exported already: their numbers could not be told apart.
        """
        from .stats import Stats

        if not isinstance(stats, Stats):
            raise TypeError(f"stats must be a Stats, not {stats!r}")
        if role == "":
            raise ValueError("role must not be empty: ''")
        source = _Source(stats, _checked_labels({"role": role, **(labels or {})}, labels or {}))
        with self._lock:
            if any(_meaning(known.labels) == _meaning(source.labels) for known in self._sources):
                raise ValueError(f"a Stats with the labels {dict(source.labels)!r} is exported already")
            self._sources = (*self._sources, source)

    def remove(self, stats: Stats) -> None:
        """Export a Stats no more. One that is not exported is fine."""
        with self._lock:
            self._sources = tuple(source for source in self._sources if source.stats is not stats)

    def describe(self) -> Iterable[Family]:
        """Return no families: so that a registry does not collect to learn the names."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Give every metric of every Stats, each family once."""
        sources = self._sources
        names = tuple(dict.fromkeys(name for source in sources for name in source.labels)) or ("role",)
        rows = [
            ([source.labels.get(name, "") for name in names], source.stats.snapshot()) for source in sources
        ]
        for metric in METRICS.values():
            family = self._family(metric, names)
            for values, snapshot in rows:
                _add_sample(family, values, snapshot[metric.name])
            yield family
        yield self._info(sources, names)

    def text(self) -> str:
        """Return all metrics in Prometheus's text format."""
        text: str = self._client.generate_latest(self.registry).decode()
        return text

    def serve(self, port: int, addr: str = "127.0.0.1") -> MetricsServer:
        """Serve the metrics over HTTP from a thread.

        Anybody who reaches the address can read them; by default that is this machine only.

        Parameters
        ----------
        port : int
            0 lets the system choose: the answer's `port` tells.

        Raises
        ------
        OSError
            If the address can't be listened on.
        """
        return MetricsServer(*self._client.start_http_server(port, addr, registry=self.registry))

    def _family(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        families = self._client.core
        make = {
            "counter": families.CounterMetricFamily,
            "gauge": families.GaugeMetricFamily,
            "histogram": families.HistogramMetricFamily,
        }[metric.kind]
        return make(prometheus_name(metric), metric.help, labels=labels)

    def _info(self, sources: tuple[_Source, ...], labels: tuple[str, ...]) -> Family:
        from kvfast import __version__

        family: Family = self._client.core.InfoMetricFamily(PREFIX.rstrip("_"), INFO_HELP, labels=labels)
        for source in sources:
            values = [source.labels.get(name, "") for name in labels]
            for info in source.stats.infos:
                family.add_metric(values, {**info, "version": __version__})  # type: ignore[attr-defined]
        return family


class MetricsServer:
    """The HTTP server that `PrometheusExporter.serve` started. A context manager that closes it.

    Attributes
    ----------
    address : tuple of (str, int)
        Where it listens.
    port : int
        The same port.
    """

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self._server: Final = server
        self._thread: Final = thread
        self.address: Final[tuple[str, int]] = server.server_address[:2]
        self.port: Final = self.address[1]

    def close(self) -> None:
        """Stop listening, and wait for the thread to end."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(
            'Prometheus export needs prometheus_client: pip install "kvfast[metrics]"'
        ) from error
    return prometheus_client


def _add_sample(family: Any, labels: list[str], value: float | HistogramSnapshot) -> None:
    if isinstance(value, dict):
        family.add_metric(labels, buckets=list(value["buckets"].items()), sum_value=value["sum"])
    else:
        family.add_metric(labels, value)


def _checked_labels(labels: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    for name in own:
        if not isinstance(name, str):
            raise TypeError(f"the name of a label must be a str, not {name!r}")
        if not _LABEL_NAME.fullmatch(name) or name in _TAKEN_LABELS:
            raise ValueError(f"no name for a label, or one that is taken: {name!r}")
    for name, value in labels.items():
        if not isinstance(value, str):
            raise TypeError(f"label {name} must be a str, not {value!r}")
    return dict(labels)


def _meaning(labels: Mapping[str, str]) -> dict[str, str]:
    # To Prometheus an empty label is none.
    return {name: value for name, value in labels.items() if value}
