"""Metrics in Prometheus' text format: the answer to a scrape."""
