"""Read a key of a config.json as a typed value, or raise an error that names the key and the
accepted values.

The readers handle JSON's loose habits (large integers written as floats, null for absent) and know
no model family. Called by the readers of model families and of quantisations.
"""

from __future__ import annotations

from collections.abc import Mapping

from atom.sizing.errors import ModelFactsError

Config = Mapping[str, object]

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def positive(config: Config, key: str, *, default: int | None = None) -> int:
    """Return a whole number of at least 1; `default` if the key is absent or null."""
    value = config.get(key)
    if value is None:
        value = default
    number = _whole(value)
    if number is None or number < 1:
        raise _wrong(config, key, "a positive integer")
    return number


def count(config: Config, key: str, *, default: int = 0) -> int:
    """Return a whole number of at least 0."""
    value = config.get(key)
    number = default if value is None else _whole(value)
    if number is None or number < 0:
        raise _wrong(config, key, "an integer of at least 0")
    return number


def number(config: Config, key: str, *, default: float) -> float:
    """Return a number above 0; `default` if the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise _wrong(config, key, "a number above 0")
    return float(value)


def optional(config: Config, key: str) -> int | None:
    """Return a positive number, or None if the key is absent or null."""
    return None if config.get(key) is None else positive(config, key)


def flag(config: Config, key: str, *, default: bool = False) -> bool:
    """Read a field that is true or false."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(config, key, "true or false")
    return value


def texts(config: Config, key: str) -> tuple[str, ...]:
    """Return a list of texts, empty if the key is absent or null."""
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise _wrong(config, key, "a list of texts")
    return tuple(value)


def mapping(config: Config, key: str) -> Config:
    """Return an object, empty if the key is absent or null."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(config, key, "an object")
    return value


def element_bytes(config: Config) -> int:
    """Return the element size; transformers 5 writes `dtype`, older versions `torch_dtype`; an
    absent key means float32."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(key)
    name = "float32" if value is None else str(value).removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        supported = ", ".join(sorted(_DTYPE_BYTES))
        raise ModelFactsError(f"config.json: {key} is {value!r}; supported: {supported}", field=key)
    return _DTYPE_BYTES[name]


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # YAML and JSON tools turn large integers into floats
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _wrong(config: Config, key: str, accepted: str) -> ModelFactsError:
    found = "is missing" if config.get(key) is None else f"is {config[key]!r}"
    return ModelFactsError(f"config.json: {key} {found}; it must be {accepted}", field=key)
