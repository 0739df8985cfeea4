"""kopf's decorators and two lines each: an event becomes a key in the work queue.

Only `on.event` handlers: they keep no progress, so the operator writes neither annotations nor
finalizers to an AtomDeployment.
"""
