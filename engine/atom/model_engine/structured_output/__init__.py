"""Structured output in the engine core: grammars compiled beside the loop, masks for its steps."""
