"""The page of models: what the engine runs of each architecture, plain and in which forms.

The forms are written in models.yaml as quantization_config has them; tests build checkpoints in
each, and hold the page against what engine and plan accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from atom.sizing.architectures import ARCHITECTURES, LACKING
from atom.sizing.engine_support import format_problem
from atom.sizing.families.encoder_rows import ENCODERS
from atom.sizing.families.fallback import FALLBACKS
from atom.sizing.options.beside_fallback import REFUSED_BESIDE_FALLBACK
from atom.sizing.quantization.config import read_quantization
from atom.sizing.text_part import WRAPPERS, Wrapper
from atom.sizing.vision.readers import reads_images
from tools.reference.markdown import code, codes, head, table

_FORMS = Path(__file__).with_suffix(".yaml")
_HEAD = """
The table lists every architecture that has a family in this version's engine, by the name in
`config.json`.
Checkpoints in bfloat16, float16 or float32 are always accepted. Each column is a writer of
quantised checkpoints, as `quant_method` names it, and *all* is every form of that writer in the
table below. If experts are one tensor of all, a form that they cannot have is accepted if the
checkpoint leaves experts plain. Engine and plan reject all models that no table of this page lists,
by name, and suggest the nearest supported architecture.
"""
_WRAPPED_HEAD = """
Of a checkpoint whose images are read, the image encoder is loaded with the text part, unless
`--language-model-only` or `--limit-mm-per-prompt 0` is given. Of the others the text part alone is
served.
"""
_ENCODERS_HEAD = """
These models answer requests for [embeddings, scores and
ranking](../guides/http-api.md#embeddings-scores-and-ranking), and generate nothing. Checkpoints are
plain.
"""
_FALLBACKS_HEAD = """
These models have no family here. transformers' class computes them, with the engine's attention and
paged cache, which is slower and unproven on published weights. The log and the plan's warnings say
so. At its start, the engine compares a narrow model of the same class and flags with transformers,
and refuses the model if any logits differ ([models without a
family](../guides/adding-a-model.md#models-without-a-family)). Checkpoints are plain.
"""
_FORMS_HEAD = """
The fields of each form in `quantization_config`, except the modules that it leaves plain.
"""
_LACKING_HEAD = """
These architectures are rejected with the missing part.
"""


# Refused by other tables, and decided by the engine without an option.
_FALLBACKS_LACK = (
    (code("tensor_parallel_size"), "more than one rank"),
    (code("quantization"), "quantised matrices, of the checkpoint or by the engine"),
    ("(no option)", "graphs: every step runs eagerly"),
    ("(no option)", "new weights of a running engine (`POST /update_weights`)"),
    ("(no option)", "ropes that grow with the longest request (dynamic, longrope)"),
)


def forms() -> Mapping[str, Mapping[str, dict[str, Any]]]:
    """The forms of each writer by their names: quantization_config as far as it tells them."""
    return cast(Mapping[str, Mapping[str, Any]], yaml.safe_load(_FORMS.read_text("utf-8")))


def taken(architecture: str, method: str) -> tuple[str, ...]:
    """Name the forms of a writer that the experts, or all matrices, of an architecture may have."""
    row = ARCHITECTURES[architecture]
    if row.written_by and method not in row.written_by:
        return ()
    block = row.family.experts_block.written_by(method)
    found = []
    for name, section in forms()[method].items():
        scheme = read_quantization({"quantization_config": {"quant_method": method, **section}})
        assert scheme is not None
        assert scheme.default is not None
        if not format_problem(block, scheme.default):
            found.append(name)
    return tuple(found)


def page() -> str:
    known = forms()
    columns = ("model", "architecture", *map(code, known))
    rows = [_row(architecture, row.label) for architecture, row in ARCHITECTURES.items()]
    text = head("Models", _HEAD) + f"\n{table(columns, rows)}"
    wrapped = (
        (
            wrapper.label,
            code(name),
            codes(dict.fromkeys(wrapper.text.values())),
            "read" if reads_images(name) else "refused",
            _of_experts(wrapper),
        )
        for name, wrapper in WRAPPERS.items()
    )
    columns = ("model", "architecture", "its text part is a", "images", "forms")
    text += f"\n## Text parts of multimodal checkpoints\n{_WRAPPED_HEAD}\n{table(columns, wrapped)}"
    encoders = ((row.label, code(name)) for name, row in ENCODERS.items())
    text += f"\n## Text encoders\n{_ENCODERS_HEAD.strip()}\n\n"
    text += table(("model", "architecture"), encoders)
    fallbacks = ((row.label, code(name)) for name, row in FALLBACKS.items())
    text += f"\n## Models without a family\n{_FALLBACKS_HEAD.strip()}\n\n"
    text += table(("model", "architecture"), fallbacks)
    text += "\nRefused beside such a model, with the option's name:\n\n"
    refused = ((code(name), feature) for name, feature in REFUSED_BESIDE_FALLBACK.items())
    text += table(("option", "feature"), (*refused, *_FALLBACKS_LACK))
    written = (
        (code(method), name, code(_said(section)))
        for method, of_method in known.items()
        for name, section in of_method.items()
    )
    text += f"\n## Forms\n{_FORMS_HEAD.strip()}\n\n{table(('writer', 'form', 'says'), written)}"
    lacking = ((code(name), words) for name, words in LACKING.items())
    return f"{text}\n## Not yet\n{_LACKING_HEAD.strip()}\n\n" + table(
        ("architecture", "missing part"), lacking
    )


def _row(architecture: str, name: str) -> tuple[str, ...]:
    cells = []
    for method, of_method in forms().items():
        found = taken(architecture, method)
        cells.append("all" if len(found) == len(of_method) else ", ".join(found) or "–")
    return (name, code(architecture), *cells)


def _of_experts(wrapper: Wrapper) -> str:
    block = wrapper.experts_block
    return "that one's" if block is None or block.stacking.in_modules else "with experts plain"


def _said(section: Mapping[str, Any]) -> str:
    """Write a section without its brackets, its groups as they count."""
    inner = section.get("config_groups", {}).get("group_0", {}).get("weights")
    said = {**section, **({"config_groups": inner} if inner else {})}
    return ", ".join(f"{key}: {value}" for key, value in said.items()) or "no further field"
