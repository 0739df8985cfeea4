"""The keys that a request brings: OpenAI's clients send Authorization: Bearer KEY, Anthropic's
x-api-key: KEY. Which of them is right is found by access.py, and remembered here."""

from __future__ import annotations

from starlette.types import Scope

from atom.entrypoints.http.response_headers import header_of

KEY_HEADER = "x-api-key"
_CHECKED = "checked_key"


def keys_in(scope: Scope) -> list[str]:
    """Every key that the request brings; agents that sit behind a gateway bring two."""
    scheme, _, key = (header_of(scope, "authorization") or "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return [found for found in (bearer, (header_of(scope, KEY_HEADER) or "").strip()) if found]


def remember_key(scope: Scope, key: str) -> None:
    """Note the key that was checked: whose a request is must not go by another one beside it."""
    scope.setdefault("state", {})[_CHECKED] = key


def key_of(scope: Scope) -> str:
    """Return the checked key, else the first one given; empty if there is none."""
    checked: str | None = scope.get("state", {}).get(_CHECKED)
    return next(iter(keys_in(scope)), "") if checked is None else checked
