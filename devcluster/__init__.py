"""A real single-node Kubernetes for development and tests, built from source and run without
Docker.

Run as `python -m devcluster`. Imports nothing outside the standard library, so that it works before
any environment exists. Knows nothing of the engine or the operator, except in
`images.project_images`, which names their images. At the top stand the commands, what they all
need, and the programs that run by name beside a cluster: renamed, a cluster that runs would not be
found.
"""
