"""The address that was meant by one that does not exist: a slip, a wrong base URL, or an address of
another server. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from atom.sizing.options.nearest import nearest

_LONGEST = 200  # characters of a path that are compared
_LIKENESS = 0.85  # of an address with more than three slips
_V1 = re.compile(r"^(/v1)+(?=/|$)")
_CHAT, _TEXT, _MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
_EMBED, _RERANK = "/v1/embeddings", "/v1/rerank"
# Addresses of Ollama, llama.cpp, TGI, SGLang, vLLM, KServe, Azure, Cohere and Gemini.
_ELSEWHERE = {
    "/completion": _TEXT, "/embedding": _EMBED, "/reranking": _RERANK, "/props": "/server_info",
    "/slots": "/load", "/apply-template": "/v1/chat/completions/render", "/infill": _TEXT,
    "/generate_stream": _TEXT, "/info": "/server_info", "/chat_tokenize": "/tokenize",
    "/get_model_info": "/server_info", "/get_server_info": "/server_info",
    "/health_generate": "/health", "/flush_cache": "/reset_prefix_cache", "/encode": _EMBED,
    "/pooling": _EMBED, "/healthz": "/health", "/livez": "/live", "/readyz": "/ready",
    "/v2/health/live": "/live", "/v2/health/ready": "/ready", "/status": "/health",
    "/v1/chat": _CHAT, "/v2/chat": _CHAT, "/v1/embed": _EMBED, "/v2/embed": _EMBED,
    "/v1/generate": _TEXT, "/v1/complete": "/v1/messages", "/swagger": "/docs",
}  # fmt: skip
_PATTERNS = (
    (re.compile(r"/openai/deployments/[^/]+(/.+)"), r"/v1\1"),
    (re.compile(r"/v1/engines/[^/]+(/.+)"), r"/v1\1"),
    (re.compile(r"/openai(/v1/.+)"), r"\1"),
    (re.compile(r"/v1(?:beta)?/models/[^/]+:(?:stream)?generateContent", re.I), _CHAT),
    (re.compile(r"/v2/models/.+/(?:infer|generate|generate_stream)"), _TEXT),
)
_ONCE = "A base URL ends with /v1, once"


def meant_address(path: str, known: Iterable[str]) -> str:
    """Return a sentence with the address that was meant by `path`, or "" if none is like it.

    known: the addresses that the server has; parameters of a path in braces are not compared.
    """
    routes = [each for each in known if "{" not in each]
    asked = re.sub(r"/{2,}", "/", path[:_LONGEST]).rstrip("/") or "/"
    lower = asked.lower()
    found = _elsewhere(asked, routes)
    if found:
        return f"did you mean {found}?"
    bare = _V1.sub("", asked)
    for candidate in (asked, lower, f"/v1{bare}", f"/v1{bare.lower()}", bare, bare.lower()):
        if candidate in routes:
            return _sentence(candidate, path)
    near = _near(lower, routes) or _near(f"/v1{bare.lower()}", routes)
    return _sentence(" or ".join(near), path) if near else ""


def _near(path: str, routes: list[str]) -> list[str]:
    return nearest(path, routes, likeness=_LIKENESS)


def _elsewhere(path: str, routes: list[str]) -> str:
    """Return the address here that does what another server's address does; "" if there is none."""
    same = _ELSEWHERE.get(path.lower())
    if same in routes:
        return str(same)
    for pattern, instead in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None and match.expand(instead) in routes:
            return match.expand(instead)
    return ""


def _sentence(meant: str, path: str) -> str:
    """Add the rule of base URLs if the two differ in it."""
    differs = meant.count("/v1") and meant.count("/v1") / len(meant.split(" or ")) != path.count(
        "/v1"
    )
    return f"did you mean {meant}? {_ONCE}" if differs else f"did you mean {meant}?"
