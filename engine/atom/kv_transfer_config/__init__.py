"""The options of `--kv-transfer-config`: the exchange of KV pages with other engines."""
