"""The form in which the engine loads a model, where the spec's own arguments choose another than
the checkpoint's. Pure; the engine decides the same from the same flags (atom/config.py).

Files and downloads have the checkpoint's form: their sizes are of the facts without it.
"""

from __future__ import annotations

from dataclasses import replace

from atom.sizing import ModelFacts, ModelFactsError
from atom.sizing.options.model import ModelOptions
from atom.sizing.quantization.online import ONLINE, online_scheme, read_online_config

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def as_loaded(facts: ModelFacts, asked: ModelOptions) -> ModelFacts:
    """Return the facts with the elements of --dtype, and with the matrices of a plain checkpoint in
    the format of --quantization or --online-quant-config. A format that the engine refuses changes
    nothing."""
    element = _ELEMENT_BYTES.get(asked.dtype)
    if element is not None and element != facts.weight_dtype_bytes:
        facts = replace(facts, weight_dtype_bytes=element)
    if facts.quantization is not None:
        return facts
    try:
        if asked.quantization in ONLINE:
            return facts.stored_as(online_scheme(asked.quantization))
        if asked.online_quant_config is not None:
            return facts.stored_as(read_online_config(asked.online_quant_config))
    except ModelFactsError:
        return facts
    return facts
