"""From a decoded picture to the pixels and prompt tokens of one model family, a file per family.

Each file follows the processor of the family in transformers, which is the oracle in tests and is
never imported here. `families.py` selects the processor of a checkpoint.
"""
