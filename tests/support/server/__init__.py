"""The HTTP server as a process, and its clients."""
