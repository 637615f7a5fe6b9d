"""A collector of OpenTelemetry that keeps what it is sent, decoded with the protocol's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected:
    """What has arrived until now."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    @property
    def spans(self) -> list[Any]:
        found = [each for each in self.requests if isinstance(each, ExportTraceServiceRequest)]
        scopes = [scope for each in found for whole in each.resource_spans for scope in whole.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def metrics(self) -> list[tuple[str, float]]:
        found = [each for each in self.requests if isinstance(each, ExportMetricsServiceRequest)]
        return [
            (metric.name, point.as_double)
            for each in found
            for whole in each.resource_metrics
            for scope in whole.scope_metrics
            for metric in scope.metrics
            for point in metric.gauge.data_points
        ]

    @property
    def services(self) -> set[tuple[str, str]]:
        """Name and instance of whoever sent something."""
        resources = [
            whole.resource
            for each in self.requests
            for whole in (each.resource_spans if isinstance(each, ExportTraceServiceRequest) else each.resource_metrics)
        ]
        told = [values_of(resource.attributes) for resource in resources]
        return {(each["service.name"], each["service.instance.id"]) for each in told}


def values_of(attributes: Any) -> dict[str, Any]:
    """Attributes as Python has them."""
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collector() -> Iterator[Collected]:
    """Takes OTLP over HTTP at its url until the block ends."""
    kept = Collected()
    kinds = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = kinds[self.path]()
            request.ParseFromString(body)
            kept.requests.append(request)
            kept.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
