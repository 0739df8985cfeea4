"""The engine core's interface to the process that runs its batches: typed calls, and tickets for
steps."""
