"""Ollama's API, translated to the chats and completions of this server."""
