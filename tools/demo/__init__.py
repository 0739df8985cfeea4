"""The demo: a cluster, the chart, a chat, and a pod that is killed while it answers."""
