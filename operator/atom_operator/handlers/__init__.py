"""The operator's process: start and end, terms, and kopf, by which AtomDeployments come in.

kopf runs for a term and keeps nothing on the objects, neither annotations nor finalizers; the
informers tell what has changed of everything else.
"""
