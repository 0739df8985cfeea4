"""The Kubernetes API of the operator: models, and the CRD made from them."""
