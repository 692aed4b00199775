"""Prometheus text of the running demo, on loopback."""

from __future__ import annotations

from kvfast.prometheus import MetricsServer, PrometheusExporter
from kvfast.stats import Stats

from .errors import PortError


def serve_metrics(stats: Stats, port: int) -> MetricsServer:
    """Serve a Receiver's numbers from a thread; 0 lets the system choose the port.

    Raises
    ------
    BackendUnavailableError
        If ``prometheus_client`` is not installed.
    PortError
        If the port can't be listened on.
    """
    exporter = PrometheusExporter()
    exporter.add(stats, role="receiver")
    try:
        return exporter.serve(port)
    except OSError as error:
        text = f"metrics can't be served on port {port} ({error.strerror}): try --metrics-port 0"
        raise PortError(text) from error
