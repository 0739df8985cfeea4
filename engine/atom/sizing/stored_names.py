"""The names of a checkpoint's tensors and modules, read as the engine's names. Pure.

A family's table has the names that differ; a multimodal wrapper adds those around its decoder. The
loader, the reader of adapters and the check of a checkpoint ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atom.sizing.architectures import family_of
from atom.sizing.config_fields import Config
from atom.sizing.families.checkpoint_names import NamePairs, engine_name
from atom.sizing.families.reading import ties_head
from atom.sizing.text_part import encoder_name, text_name, text_part, wrapper_of


def names_of(config: Config) -> NamePairs:
    """Return the pairs of names that differ between a checkpoint with this config.json and the
    engine."""
    text = text_part(config)
    _, family = family_of(text)
    return family.stored.names(family.fields(text))


def is_tied(config: Config) -> bool:
    """Return whether the head is the embedding by a config.json, a text part's or a wrapper's."""
    text = text_part(config)
    return ties_head(family_of(text)[1], text)


def tensor_reader(config: Config, *, encoders: bool = False) -> Callable[[str], str | None]:
    """Return a function from a checkpoint's tensor name to the engine's name; None for tensors of
    parts that are not served. encoders: whether encoders of images are."""
    pairs = names_of(config)
    wrapped = wrapper_of(config) is not None

    def read(stored: str) -> str | None:
        name = text_name(stored) if wrapped else stored
        if name is None:
            return encoder_name(stored) if encoders else None
        return engine_name(name, pairs)

    return read


def has_turned_experts(config: Config) -> bool:
    """Return whether adapters have the two matrices of all experts in each other's place."""
    return family_of(text_part(config))[1].stored.turned_experts


def module_reader(config: Config) -> Callable[[str], Iterator[str]]:
    """Return a function that yields the engine's possible names of a module of a checkpoint or of
    transformers' model: its own name, and the names under which a checkpoint of this config.json, a
    wrapper or a bare decoder stores it."""
    pairs = names_of(config)
    _, family = family_of(text_part(config))

    def read(module: str) -> Iterator[str]:
        inner = text_name(f"{module}.weight")
        for name in (module, inner and inner.removesuffix(".weight"), f"model.{module}"):
            if name:
                yield name
                yield engine_name(name, pairs)
                yield engine_name(engine_name(name, family.stored.modules), pairs)

    return read
