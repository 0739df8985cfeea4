"""Batches that the server keeps in a folder and answers beside interactive requests: OpenAI's
/v1/files and /v1/batches."""
