"""KV blocks: which are free, shared or cached, and what each one holds."""
