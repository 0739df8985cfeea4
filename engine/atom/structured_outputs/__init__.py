"""What a request may ask of the shape of its answer: values and their limits. Torch-free.

How it is enforced is `model_engine.structured_output`.
"""

from atom.structured_outputs.params import GrammarSpec, StructuredOutputsParams

__all__ = ["GrammarSpec", "StructuredOutputsParams"]
