"""Engine cores in the test's own process, and what must hold of them."""
