"""What is written on pods that run: the cost of ending them, and the adapters they serve."""
