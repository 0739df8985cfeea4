"""Turn the logits of a step's rows into their next tokens, and into the reported
log-probabilities."""
