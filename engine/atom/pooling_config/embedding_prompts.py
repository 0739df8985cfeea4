"""Prompts of an embedding model: texts in front of its inputs, from sentence-transformers' files.

`config_sentence_transformers.json` names them (such as query and document), and may name one as the
default. A request selects one by its name, or by the role of its texts. Torch-free; called by
`pooling_config` and by the endpoint of embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from atom.errors import ModelError, RequestError
from atom.pooling_config.sentence_files import Part, read_settings

PROMPTS_FILE = "config_sentence_transformers.json"
InputType = Literal[
    "query",
    "search_query",
    "document",
    "search_document",
    "passage",
    "classification",
    "clustering",
]
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")
# The names of prompts for each role, the first that a model has, as in sentence-transformers'
# encode_query and encode_document.
_NAMES: dict[InputType, tuple[str, ...]] = {
    "query": _QUERY,
    "search_query": _QUERY,
    "document": _DOCUMENT,
    "search_document": _DOCUMENT,
    "passage": _DOCUMENT,
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPrompts:
    """The named texts. default: the name of the one for a request without a choice, None for none;
    pooled: their tokens are pooled with the input's."""

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    pooled: bool = True

    def text(self, name: str | None, input_type: InputType | None) -> str:
        """Return the text in front of a request's inputs. Raises `RequestError` for an unknown
        name."""
        if name is not None and input_type is not None:
            raise RequestError(
                "prompt_name and input_type both select the prompt; send one of them",
                param="prompt_name",
            )
        if input_type is not None:
            known = (each for each in _NAMES[input_type] if each in self.texts)
            name = next(known, self.default)
        elif name is None:
            name = self.default
        elif name not in self.texts:
            names = ", ".join(self.texts)
            raise RequestError(
                f"prompt_name {name[:64]!r} is unknown; the model has "
                + (f"the prompts {names}" if names else "no prompts: leave prompt_name out"),
                param="prompt_name",
            )
        text = "" if name is None else self.texts[name]
        if text and not self.pooled:
            raise RequestError(
                f"the prompt {name} is left out of the pooling (include_prompt is false), which is "
                "not computed here; send neither prompt_name nor input_type",
                param="prompt_name",
            )
        return text


def read_prompts(folder: Path, *, pooled: bool) -> EmbeddingPrompts:
    """Read the prompts of a model. pooled: of its pooling's settings. Raises `ModelError` for
    prompts that are no texts, and for a default that is not there or cannot be computed."""
    file = folder / PROMPTS_FILE
    said = read_settings(file, Part.MODEL)
    texts, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if default is not None and default not in texts:
        raise ModelError(
            f"{file}: default_prompt_name is {default!r}, and prompts has "
            f"{', '.join(texts) or 'nothing'}; correct one of them"
        )
    if default is not None and texts[default] and not pooled:
        raise ModelError(
            f"{file}: the default prompt {default} is left out of the pooling (include_prompt is "
            "false), which is not computed here; remove default_prompt_name"
        )
    return EmbeddingPrompts(texts=texts, default=default, pooled=pooled)
