"""Spans of requests by OpenTelemetry's SDK; there are none without --otlp-traces-endpoint."""
