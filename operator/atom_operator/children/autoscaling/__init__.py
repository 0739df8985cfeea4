"""The autoscaler of a workload: KEDA's ScaledObject or a HorizontalPodAutoscaler. Pure."""
