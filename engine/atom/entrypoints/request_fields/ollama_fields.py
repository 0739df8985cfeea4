"""Every request field of Ollama's API that `ollama/shapes.py` does not declare."""

from __future__ import annotations

from atom.entrypoints.request_fields.field_row import Endpoint, harmless, refused

_BOTH = (Endpoint.OLLAMA_CHAT, Endpoint.OLLAMA_GENERATE)
_GENERATE = (Endpoint.OLLAMA_GENERATE,)
_EMBED = (Endpoint.OLLAMA_EMBED, Endpoint.OLLAMA_EMBEDDINGS)

OLLAMA_FIELDS = (
    *harmless(_BOTH, "truncate shift", "a prompt that is too long is refused"),
    *harmless(_EMBED, "keep_alive", "a model stays loaded"),
    *harmless(_EMBED, "options", "flags of the server decide how a model is loaded"),
    *refused(_BOTH, "logprobs top_logprobs", "send it to /v1/chat/completions", False, 0),
    *refused(_GENERATE, "suffix", "write the fill-in marks of the model into a raw prompt", ""),
    *refused(_GENERATE, "template", "start the server with --chat-template FILE, or send raw", ""),
    *refused(_GENERATE, "context", "send the conversation to /api/chat", []),
)
