"""The default of --prefill-least-tokens, for the command line, the workers and the operator."""

from __future__ import annotations

DEFAULT_LEAST_TOKENS = 512
