"""Engines that benchmarks ask: one in this process, and servers in processes of their own."""
