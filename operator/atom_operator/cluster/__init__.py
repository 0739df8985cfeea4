"""The only place with effects on the cluster, behind ClusterPort."""
