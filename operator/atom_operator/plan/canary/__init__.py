"""How far a canary goes, and by what it is judged."""
