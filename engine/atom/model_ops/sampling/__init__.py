"""How the logits of a step's rows become their next tokens, and what is told of them."""
