"""Numbers of replicas that others act on: an autoscaler, and the controller of Deployments."""
