"""Prompts as token ids, apart from their answers: /render makes them, /inference/v1/generate takes
them and answers with tokens."""
