"""Parts of a decoder layer and of a model, which families put together by their specs."""
