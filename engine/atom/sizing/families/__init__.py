"""The layers of every model family that can be sized, read from config.json. Pure.

One function per family returns layer i. An absent key means the default of transformers'
configuration class for that family. `atom.sizing.architectures` names the function of each
architecture.
"""
