"""A cluster that plays by its rules, in memory: what the API server, the controllers, the scheduler
and the kubelet do, each in a file of its own.

`cluster.InMemoryCluster` puts them together on the objects of a FakeCluster, with a clock that
jumps to the next thing that is due.
"""
