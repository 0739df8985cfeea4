"""Recordings of a server's load: lengths, times and hashes of prompts, and no text."""
