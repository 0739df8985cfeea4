"""The rules of this version's CustomResourceDefinitions, applied as an API server applies them."""
