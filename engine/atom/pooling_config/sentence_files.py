"""Keys of sentence-transformers' files: each is read, changes no number, or is refused by name.

`KEYS` has one row per key that a version up to 6.2 writes or reads. A key of a module that has no
row is refused unless its value turns a feature off. In `config_sentence_transformers.json`, such a
key is ignored, as sentence-transformers ignores it. Torch-free; called by `pooling_config` and by
the reader of prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from atom.errors import ModelError
from atom.model_source.json_object import read_object
from atom.sizing.config_schema import FIELDS

# In the order in which sentence-transformers looks for the first of them that is not empty.
LENGTH_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


class Part(Enum):
    """A file's owner: the whole model, or a module by the last word of its type."""

    MODEL = "SentenceTransformer"
    TRANSFORMER = "Transformer"
    POOLING = "Pooling"
    DENSE = "Dense"
    NORMALIZE = "Normalize"
    LOGIT_SCORE = "LogitScore"


@dataclass(frozen=True, slots=True)
class Key:
    """The values that a key may have. accepted: these values in words."""

    takes: Callable[[Any], bool]
    accepted: str


def _one_of(*values: object) -> Key:
    words = " or ".join("null" if each is None else str(each) for each in values)
    return Key(lambda value: value is None or (isinstance(value, str) and value in values), words)


def _text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _holds_only(*names: str) -> Key:
    """Accept an object of these keys, which change no number of a text's vector."""
    words = f"an object with no other keys than {', '.join(names)}" if names else "empty"
    return Key(
        lambda value: not value or (isinstance(value, Mapping) and set(value) <= set(names)), words
    )


_ANY = Key(lambda value: True, "any value")
_NULL = Key(lambda value: value is None, "null, since another value is not computed here")
_FLAG = Key(lambda value: isinstance(value, bool), "true or false")
_OFF = Key(lambda value: value is None or value is False, "false, since true is not computed here")
_SIZE = Key(FIELDS["hidden_size"].takes, "a whole number from 1")
_LENGTH = Key(
    lambda value: value is None or FIELDS["max_position_embeddings"].takes(value),
    "a whole number from 1 or null",
)
_TOKEN = Key(_is_token, "a token id")
_TOKEN_OR_NULL = Key(lambda value: value is None or _is_token(value), "a token id or null")
_TEXT = Key(_text_or_null, "a text or null")
_TORCH = Key(
    lambda value: isinstance(value, str) and value.startswith("torch."),
    "a class of torch, such as torch.nn.modules.activation.Tanh",
)
_TORCH_OR_NULL = Key(lambda value: value is None or _TORCH.takes(value), _TORCH.accepted)
_MODE = Key(
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and len(value) == 1 and isinstance(value[0], str))
    ),
    "one rule of pooling",
)
_VECTOR = _one_of("sentence_embedding", None)
_LOADING = _holds_only(
    "torch_dtype", "dtype", "attn_implementation", "trust_remote_code", "device_map",
    "low_cpu_mem_usage", "use_safetensors", "add_pooling_layer",
)  # fmt: skip
_TOKENIZING = _holds_only("padding_side", "use_fast", "trust_remote_code")
_CONFIGURING = _holds_only("trust_remote_code", "use_cache")
_TASKS = _one_of("feature-extraction", "sequence-classification", "text-generation", None)
_OUTPUTS = ("last_hidden_state", "logits", "token_embeddings", "causal_logits", "scores")


def _reads_text(value: Any) -> bool:
    """Return whether the states of a text are the forward pass's."""
    if not value:
        return value is None or value == {}
    text = value.get("text") if isinstance(value, Mapping) else None
    return (
        isinstance(text, Mapping)
        and text.get("method") == "forward"
        and text.get("method_output_name") in _OUTPUTS
    )


KEYS: Mapping[Part, Mapping[str, Key]] = {
    Part.MODEL: {
        "__version__": _ANY,
        "requirements": _ANY,
        "keep_in_fp32_modules": _ANY,
        "model_type": _one_of("SentenceTransformer", "CrossEncoder", None),
        "prompts": Key(
            lambda value: value is None
            or (isinstance(value, dict) and all(isinstance(each, str) for each in value.values())),
            "an object of names and texts",
        ),
        "default_prompt_name": _TEXT,
        "similarity_fn_name": _one_of("cosine", "dot", "euclidean", "manhattan", None),
        "truncate_dim": Key(
            lambda value: value is None, "null: remove it, and send dimensions with each request"
        ),
        "activation_fn": _TORCH_OR_NULL,
    },
    Part.TRANSFORMER: {
        "max_seq_length": _LENGTH,
        "do_lower_case": Key(
            lambda value: value is None or isinstance(value, bool), "true or false"
        ),
        "transformer_task": _TASKS,
        "modality_config": Key(_reads_text, "the forward pass of a text"),
        "module_output_name": _one_of("token_embeddings", "causal_logits", "scores", None),
        "processing_kwargs": _holds_only("chat_template"),
        "unpad_inputs": _ANY,
        "query_length": _NULL,
        "document_length": _NULL,
        "query_expansion": _NULL,
        "tokenizer_name_or_path": _NULL,
        "model_args": _LOADING,
        "model_kwargs": _LOADING,
        "tokenizer_args": _TOKENIZING,
        "processor_kwargs": _TOKENIZING,
        "config_args": _CONFIGURING,
        "config_kwargs": _CONFIGURING,
    },
    Part.POOLING: {
        "word_embedding_dimension": _ANY,
        "embedding_dimension": _ANY,
        "pooling_mode": _MODE,
        **{
            f"pooling_mode_{name}": _FLAG
            for name in (
                "cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens",
                "weightedmean_tokens", "lasttoken",
            )
        },
        "include_prompt": _FLAG,
    },
    Part.DENSE: {
        "in_features": _SIZE,
        "out_features": _SIZE,
        "bias": _FLAG,
        "activation_function": _TORCH,
        "module_input_name": _VECTOR,
        "module_output_name": _VECTOR,
        "use_residual": _OFF,
    },
    Part.NORMALIZE: {"module_input_name": _VECTOR, "module_output_name": _VECTOR},
    Part.LOGIT_SCORE: {
        "true_token_id": _TOKEN,
        "false_token_id": _TOKEN_OR_NULL,
        "module_input_name": _one_of("causal_logits", None),
    },
}  # fmt: skip


def read_settings(file: Path, part: Part) -> dict[str, Any]:
    """Read a file's keys, {} if there is no such file. Raises `ModelError` for a key that is not
    computed, with the accepted values."""
    settings = read_object(file)
    known = KEYS[part]
    for name, value in settings.items():
        key = known.get(name)
        if key is None:
            if part is not Part.MODEL and value not in (None, False, "", 0, [], {}):
                raise ModelError(
                    f"{file}: {name[:64]!r} is unknown here, so that vectors could be others; "
                    "remove the key if it changes none"
                )
        elif not key.takes(value):
            raise ModelError(f"{file}: {name} is {value!r:.80}; it must be {key.accepted}")
    return settings


def transformer_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a model's tokenizer: the first file of `LENGTH_FILES` that has any."""
    found = (read_settings(folder / name, Part.TRANSFORMER) for name in LENGTH_FILES)
    return next((settings for settings in found if settings), {})
