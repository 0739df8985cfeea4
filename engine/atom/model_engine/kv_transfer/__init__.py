"""Prefill and decode in separate engines: KV pages that one engine computes and another reads."""
