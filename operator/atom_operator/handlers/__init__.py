"""The operator's process: start and end, terms, and kopf, which watches AtomDeployments.

kopf runs for a term and stores nothing on the objects, neither annotations nor finalizers; the
informers report changes of all other objects.
"""
