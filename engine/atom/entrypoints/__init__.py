"""Programs: the command line, the HTTP server, offline generation and benchmarks."""
