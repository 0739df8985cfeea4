"""Ranks as threads, processes and players."""
