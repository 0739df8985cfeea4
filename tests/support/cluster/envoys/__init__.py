"""Gateways of tests, whose data plane is a real Envoy in the cluster's network."""
