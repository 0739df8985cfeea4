"""Benchmarks, one runnable module each: a table for people, one JSON object as the last line."""
