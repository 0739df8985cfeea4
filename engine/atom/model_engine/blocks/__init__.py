"""KV blocks: the free, shared and cached ones, and the content of each."""
