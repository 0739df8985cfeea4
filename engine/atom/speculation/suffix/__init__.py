"""Suffix decoding: drafts from texts that the host keeps, a row's own and earlier answers."""
