"""Routes that change the server for everybody: caches, traces, sleep, adapters and weights."""
