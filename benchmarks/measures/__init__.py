"""What a time is held against: the card's limits, and what the step's kernels and experts did."""
