"""Endpoints of models that pool: embeddings, scores of pairs, and documents ranked by a query."""
