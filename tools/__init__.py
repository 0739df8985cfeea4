"""Development tools: generators and checks. Run as `python -m tools.NAME`."""
