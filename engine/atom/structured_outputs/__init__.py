"""The structures that a request may require of its answer: values and their limits. Torch-free.

`model_engine.structured_output` enforces them.
"""

from atom.structured_outputs.params import GrammarSpec, StructuredOutputsParams

__all__ = ["GrammarSpec", "StructuredOutputsParams"]
