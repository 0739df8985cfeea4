"""Prefill and decode legs over HTTP: vLLM's kv_transfer_params, read and written."""
