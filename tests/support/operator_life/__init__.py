"""Generated lives of one AtomDeployment in the in-memory cluster, and the promises that they hold.

`story` draws what happens from a seed, `happenings` does it, `promises` watches, `life` plays.
"""
