"""Other projects' controllers, run beside the cluster by name: `python -m devcluster up --with`.

Each is built from its pinned Go module, as the cluster is, and runs as a process of the node with
the rights of an administrator; its CustomResourceDefinitions and webhooks are the same module's.
"""
