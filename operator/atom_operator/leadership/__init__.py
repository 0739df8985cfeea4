"""Which of several operator processes reconciles: one holder of a Lease at a time."""
