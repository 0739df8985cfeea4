"""The operator's process: kopf starts and stops it, and the runtime is what runs in between.

kopf watches nothing here and keeps no progress, so the operator writes neither annotations nor
finalizers to an AtomDeployment; the informers tell what has changed.
"""
