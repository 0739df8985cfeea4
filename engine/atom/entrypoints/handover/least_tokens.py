"""The default of --prefill-least-tokens, for the command line and for the workers."""

from __future__ import annotations

DEFAULT_LEAST_TOKENS = 512
