"""Kinds of import contracts that import-linter does not have."""
