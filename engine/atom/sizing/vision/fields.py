"""Fields of an image encoder's config that families write in the same way. Pure."""

from __future__ import annotations

from atom.sizing.config_fields import Config, mapping, number, positive
from atom.sizing.config_schema import checked
from atom.sizing.errors import ModelFactsError

_THETA = 10_000.0
_MOST_LAYERS = 4096
_MOST_WIDTH = 1 << 22  # elements of a hidden state
_MOST_CHANNELS = 64
_MOST_PATCH = 1 << 10  # pixels of a side, patches of a merged side


def vision_config(config: Config) -> Config:
    """Return the encoder's part of a config.json, with its values checked as a decoder's are."""
    return checked(mapping(config, "vision_config"))


def whole(config: Config, key: str, default: int, most: int = _MOST_WIDTH) -> int:
    """Return a positive number of at most `most`."""
    value = positive(config, key, default=default)
    if value > most:
        raise ModelFactsError(
            f"config.json: vision_config.{key} is {value}; it must be at most {most}", field=key
        )
    return value


def layer_count(config: Config, key: str, default: int) -> int:
    """Return the number of the encoder's layers."""
    return whole(config, key, default, _MOST_LAYERS)


def head_count(config: Config, key: str, default: int, hidden_size: int) -> int:
    """Return the number of heads, which share the hidden state in pairs of elements that rotate."""
    heads = whole(config, key, default)
    if hidden_size % (4 * heads):
        raise ModelFactsError(
            f"config.json: vision_config.hidden_size is {hidden_size}; it must be a multiple of "
            f"4 for each of its {heads} heads",
            field=key,
        )
    return heads


def plain_head_count(config: Config, key: str, default: int, hidden_size: int) -> int:
    """Return the number of heads, which share the hidden state and do not rotate."""
    heads = whole(config, key, default)
    if hidden_size % heads:
        raise ModelFactsError(
            f"config.json: vision_config.hidden_size is {hidden_size}; it must be a multiple of "
            f"its {heads} heads",
            field=key,
        )
    return heads


def channel_count(config: Config, key: str = "num_channels") -> int:
    """Return the number of a pixel's channels."""
    return whole(config, key, 3, _MOST_CHANNELS)


def single(config: Config, key: str, default: int) -> int:
    """Return a positive number that a config may also write as a list of equal ones. Raises
    ModelFactsError for unequal sides."""
    value = config.get(key)
    if isinstance(value, (list, tuple)):
        if not value or any(each != value[0] for each in value):
            raise ModelFactsError(
                f"config.json: vision_config.{key} is {value!r}; sides must be equal", field=key
            )
        config = {key: value[0]}
    return whole(config, key, default, _MOST_PATCH)


def rope_theta(config: Config) -> float:
    """Return the base of the rotation, in either spelling of config.json."""
    parameters = mapping(config, "rope_parameters")
    default = number(config, "rope_theta", default=_THETA)
    return number(parameters, "rope_theta", default=default)
