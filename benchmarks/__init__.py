"""Benchmarks, one runnable module each: a table for people, one JSON object as the last line.

At the top stands what is run: `python -m benchmarks.NAME`. What several of them share is in
subpackages.
"""
