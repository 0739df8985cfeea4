"""Find the supported architecture that is most similar to an unsupported one, by its name or its
keys.

Names are compared without the kind of head, letters before numbers: a family's next generation is
most similar to its last. If no name is similar, the keys of config.json that a family's reader
reads count, found by running the reader. A refusal names the result; it decides nothing else. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from atom.sizing.config_fields import Config
from atom.sizing.config_schema import FIELDS
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.reading import Family

_HEADS = re.compile(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel)$")
_LIKE = 0.7  # of letters; more similar names are related
_SAME_KEYS = 0.6
_LAYERS = 8  # that are read: kinds of layers repeat within these
# Keys that distinguish no family from another.
_ALL_HAVE = frozenset(
    {
        "architectures",
        "model_type",
        "vocab_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "tie_word_embeddings",
        "eos_token_id",
        "bos_token_id",
        "hidden_act",
        "rms_norm_eps",
        "rope_theta",
        "quantization_config",
    }
)


@dataclass(frozen=True, slots=True)
class Nearest:
    """A supported architecture. by: the similarity to the other one, in words."""

    architecture: str
    by: str

    def __str__(self) -> str:
        return f"{self.architecture} (by {self.by})"


def nearest(name: str, config: Config, families: Mapping[str, Family]) -> Nearest | None:
    """Find the family most similar to an unknown architecture, None if none is similar. config:
    checked, of its text part, or empty if only the name is known."""
    names = [name, str(config.get("model_type", ""))]
    likeness = {known: max(_letters_like(each, known) for each in names) for known in families}
    closest = max(likeness.values(), default=0.0)
    keys = {known: _keys_like(config, family) for known, family in families.items()}
    if closest >= _LIKE:
        alike = [known for known in families if likeness[known] == closest]
        best = max(
            alike, key=lambda known: (_number_like(name, known), keys[known], _shared(name, known))
        )
        return Nearest(best, "name")
    best = max(families, key=lambda known: keys[known])
    return Nearest(best, "the keys of config.json") if keys[best] >= _SAME_KEYS else None


def _stem(name: str) -> str:
    return _HEADS.sub("", name).lower().replace("_", "").removesuffix("text")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", _stem(name))


def _letters_like(name: str, known: str) -> float:
    one, other = _letters(name), _letters(known)
    like = SequenceMatcher(None, one, other).ratio()
    short, long = sorted((one, other), key=len)
    return max(like, _LIKE) if len(short) > 2 and long.startswith(short) else like


def _number_like(name: str, known: str) -> int:
    """Rank generations: of similar names, the closest number first."""
    return -abs(_number(name) - _number(known))


def _shared(name: str, known: str) -> float:
    return SequenceMatcher(None, _stem(name), _stem(known)).ratio()


def _number(name: str) -> int:
    found = re.search(r"\d+", name)
    return int(found.group()) if found else 0


def _keys_like(config: Config, family: Family) -> float:
    """Return how many of the keys that a family's reader asks for or the config has are both."""
    has = {key for key in config if key in FIELDS}
    if not has:
        return 0.0
    read = _Recorded(config)
    try:
        read = _Recorded(family.fields(config))
        for index in range(_LAYERS):
            family.layer(read, index)
    except ModelFactsError:
        pass  # it is for other models: the keys that it has read until then count
    own = has - _ALL_HAVE
    asked = read.asked - _ALL_HAVE
    return len(own & asked) / (len(own | asked) or 1)


class _Recorded(Mapping[str, object]):
    """A config that remembers which keys it was asked for."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return self._config[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)
