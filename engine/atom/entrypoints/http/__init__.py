"""HTTP below any endpoint: connections, heads and bodies, errors, event streams, access."""
