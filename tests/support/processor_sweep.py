"""Every field of a published image processor moved, left out or null in turn, held to transformers.

A case is equal, refused by the engine by name, or refused by transformers; whatever else is a
fault: the model would see another picture than it was trained on, without a word.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atom.errors import ModelError
from atom.images.errors import ImageError
from atom.images.processing.families import image_processor
from tests.support.image_oracles import Oracle, written
from tests.support.pictures import drawn_picture

_PICTURES = 2
# Names of classes and of remote code, and fields of videos and of batches of arrays.
_NOT_OF_PICTURES = ("image_processor_type", "processor_class", "auto_map")
# A contradiction between two files has the name of transformers, or that of an inner field.
_OTHER_NAMES = {
    "merge_kernel_size": ("merge_size",),
    "media_proc_cfg": ("in_patch_limit", "merge_size", "patch_size", "fixed_output_tokens"),
}
_ODD = ("text", -1, [], {}, 1.5, True)


@dataclass(frozen=True, slots=True)
class Published:
    """The files of a published checkpoint. config: what its config.json has for images; image:
    preprocessor_config.json; whole: processor_config.json; more: fields of the class in
    transformers that the files leave out; apart: how far values may be apart."""

    config: Mapping[str, Any]
    oracle: Oracle
    image: Mapping[str, Any]
    whole: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    apart: float = 1 / 255


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One change. path: of the field in preprocessor_config.json; value: ... to leave it out."""

    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        """Name the change in a test's id."""
        return f"{'.'.join(self.path)}={'absent' if self.value is ... else json.dumps(self.value)}"

    def of(self, image: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the fields with the change."""
        changed: dict[str, Any] = json.loads(json.dumps(image))
        place = changed
        for key in self.path[:-1]:
            place = place.setdefault(key, {})
        if self.value is ...:
            place.pop(self.path[-1], None)
        else:
            place[self.path[-1]] = self.value
        return changed


def changes_of(published: Published) -> list[FieldChange]:
    """List every change of every field, of fields in objects and of absent fields too."""
    found = dict.fromkeys(map(str, ()), None)
    listed = [*_changes({**published.more, **published.image}, ())]
    return [found.setdefault(str(each), each) for each in listed if str(each) not in found]


def _changes(fields: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[FieldChange]:
    for key, value in fields.items():
        if key in _NOT_OF_PICTURES:
            continue
        place = (*path, key)
        if isinstance(value, dict) and value:
            yield from _changes(value, place)
        for other in (*_moved(value), ..., None, *_ODD):
            if json.dumps(other, default=str) != json.dumps(value):
                yield FieldChange(place, other)


def _moved(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value // 2, value * 2, float(value), str(value), 0)
    elif isinstance(value, float):
        yield from (value * 2, value / 2, 0)
    elif isinstance(value, list) and value:
        yield from ([0.4, 0.5, 0.6], value[0], value[:2], [value[0]], [str(value[0])] * 3)
    elif isinstance(value, dict):
        yield from (dict.fromkeys(value, 112), {**value, "other": 3}, 112)


def verdict(folder: Path, published: Published, change: FieldChange) -> str:
    """Say what became of a change: equal, refused, by transformers, or a fault in words."""
    image = change.of(published.image)
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    (folder / "processor_config.json").write_text(json.dumps(published.whole))
    try:
        ours = image_processor(folder, published.config)
    except ModelError as error:
        names = (*change.path, *_OTHER_NAMES.get(change.path[-1], ()))
        named = any(name in str(error) for name in names)
        return "refused" if named else f"fault: the refusal does not name the field: {error}"
    except Exception as error:
        return f"fault: {error!r} is no refusal"
    assert ours is not None
    for seed in range(_PICTURES):
        picture = drawn_picture(random.Random(seed))
        try:
            pixels, text = published.oracle(picture, image, published.config)
        except Exception:  # of many kinds, all of which mean that there is no answer to hold to
            return "by transformers"
        if not np.isfinite(pixels).all():
            return "by transformers"
        try:
            item = ours.process(picture)
        except ImageError:
            return "refused"
        if item.pixels.shape != pixels.shape:
            return f"fault: pixels {item.pixels.shape}, transformers' {pixels.shape}"
        scale = max(1.0, float(np.abs(pixels).max()) / 2)
        apart = float(np.abs(item.pixels - pixels).max()) / scale
        if apart > published.apart:
            return f"fault: values are {apart:.4f} apart"
        if written(ours.expansion_of(item.grid)) != text:
            return "fault: other tokens"
    return "equal"
