"""ProcessorSettings: the fields of preprocessor_config.json and processor_config.json.

Files of older checkpoints have the fields of the image processor in preprocessor_config.json; files
of newer ones have them in processor_config.json under `image_processor`, which then come first. A
field that is null or absent has the default of the family's class in transformers. Field values
come from a checkpoint and are checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atom.errors import ModelError
from atom.model_source.json_object import read_object

PREPROCESSOR_FILE = "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"
_MOST = 1 << 30  # a size in pixels, or a number of tokens

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """The fields of a checkpoint's files. image: of the image processor; whole: of the processor
    around it; encoder: of config.json's `vision_config`; tokens: of tokenizer_config.json."""

    image: Fields
    whole: Fields
    encoder: Fields
    tokens: Fields

    def token(self, key: str, default: str) -> str:
        """Return the text of a token by its name in tokenizer_config.json."""
        value = self.tokens.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        return value if isinstance(value, str) and value else default


def read_settings(folder: Path, config: Fields) -> ProcessorSettings:
    """Read the files of a checkpoint's folder. config: its config.json. Raises `ModelError`."""
    whole = read_object(folder / PROCESSOR_FILE)
    nested = whole.get("image_processor")
    image = nested if isinstance(nested, Mapping) else read_object(folder / PREPROCESSOR_FILE)
    encoder = config.get("vision_config")
    return ProcessorSettings(
        image=image,
        whole=whole,
        encoder=encoder if isinstance(encoder, Mapping) else {},
        tokens=read_object(folder / "tokenizer_config.json"),
    )


def whole_number(fields: Fields, key: str, default: int) -> int:
    """Return a whole number of at least 1. Raises `ModelError`."""
    value = fields.get(key)
    if value is None:
        return default
    return _whole(value, key)


def square_side(fields: Fields, key: str, default: int) -> int:
    """Return the side of a square, given as a number or as equal height and width."""
    value = fields.get(key)
    if isinstance(value, Mapping):
        height, width = (_whole(value.get(each), f"{key}.{each}") for each in ("height", "width"))
        if height != width:
            raise ModelError(
                f"{PREPROCESSOR_FILE}: {key} is {height} by {width}; only squares are supported"
            )
        return height
    return whole_number(fields, key, default)


def switch(fields: Fields, key: str, default: bool) -> bool:
    """Return a field that is true or false. Raises `ModelError`."""
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelError(f"{PREPROCESSOR_FILE}: {key} must be true or false, and is {value!r}")
    return value


def step_is_on(fields: Fields, key: str, default: bool) -> bool:
    """Return whether a step of the processing is on: null is off in transformers, unlike a field
    that is absent. Raises `ModelError`."""
    return switch(fields, key, default if key not in fields else False)


def decimal(fields: Fields, key: str, default: float) -> float:
    """Return a number. Raises `ModelError`."""
    value = fields.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
        raise ModelError(f"{PREPROCESSOR_FILE}: {key} must be a number, and is {value!r}")
    return float(value)


def of_channels(fields: Fields, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return one number for each of red, green and blue. Raises `ModelError`."""
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, list | tuple):
        return (decimal(fields, key, 0.0),) * 3
    if len(value) != 3:
        raise ModelError(f"{PREPROCESSOR_FILE}: {key} must have 3 numbers, and has {len(value)}")
    return tuple(decimal({key: each}, key, 0.0) for each in value)


def must_agree(field: str, processed: int, encoded: int) -> None:
    """Raise `ModelError` if the processor and the encoder of a checkpoint state unequal sizes."""
    if processed != encoded:
        raise ModelError(
            f"{PREPROCESSOR_FILE} and config.json disagree: {field} is {processed} for images and "
            f"{encoded} for the encoder; download the checkpoint again, or correct one of them"
        )


def _whole(value: object, key: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise ModelError(
            f"{PREPROCESSOR_FILE}: {key} must be a whole number from 1 to {_MOST}, and is {value!r}"
        )
    return value
