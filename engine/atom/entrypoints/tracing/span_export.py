"""SpanExport: OpenTelemetry's SDK as one HTTP process uses it.

A thread of the SDK sends spans in batches; the unsent rest is sent at the end. The SDK's variables
apply (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_EXPORTER_OTLP_HEADERS). The SDK is
imported when an export is made, and never without --otlp-traces-endpoint.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import atom
from atom.entrypoints.process.stop_requests import on_daemon_thread

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 5.0


class SpanExport:
    def __init__(self, endpoint: str) -> None:
        """endpoint: URL of a collector's traces, by OTLP over HTTP."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        own = Resource.create(
            {
                "service.name": "atom",
                "service.version": atom.__version__,
                "process.pid": os.getpid(),
            }
        )
        # The environment's settings override our own.
        self._provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self.tracer: Tracer = self._provider.get_tracer("atom", atom.__version__)

    async def close(self) -> None:
        """Send the remaining spans, waiting a bounded time for a collector that does not answer."""
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await on_daemon_thread(self._provider.shutdown, name="flush-spans")
        except TimeoutError:
            logger.warning("the last spans were not taken within %g s", _FLUSH_SECONDS)
