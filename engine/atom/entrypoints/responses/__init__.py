"""OpenAI's /v1/responses: its requests become chats, and what they answer becomes typed items."""
