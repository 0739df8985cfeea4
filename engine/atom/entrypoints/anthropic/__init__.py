"""Anthropic's Messages API over the chats of `atom.entrypoints.openai`."""
