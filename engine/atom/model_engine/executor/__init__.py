"""How the engine core reaches what runs its batches: typed calls, and tickets for steps."""
