"""Convert the metadata of a GGUF file into a Hugging Face configuration.

All other code reads that configuration, so a single-file model is sized, checked and computed by
the code for checkpoint folders. A metadata key that this module does not convert is refused by
name, since ignoring it would silently make the answers wrong. Torch-free; a pure function of the
header.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom.errors import ModelError
from atom.gguf_file.header import GgufHeader, StoredTensor
from atom.gguf_file.tensor_names import EMBEDDING, HEAD, ROPE_FACTORS
from atom.sizing.architectures import ARCHITECTURES

# Hugging Face's classes by llama.cpp's names: Llama's is Mistral's too, which it calls llama.
_CLASSES = {row.gguf: row.name for row in ARCHITECTURES.values() if row.gguf}
# Fields that are converted, or that do not affect the computation.
_KNOWN = frozenset(
    {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
        "attention.key_length", "attention.value_length", "rope.dimension_count",
        "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.finetuned",
        "tensor_data_layout",
    }
)  # fmt: skip
_HINTS = {
    "expert_count": "a mixture of experts",
    "attention.sliding_window": "attention within a window",
    "rope.scale_linear": "scaled positions under their former key",
}
# Tensors with fewer bits are dequantised to it as they are loaded.
_DTYPES = {"F32": "float32", "F16": "float16"}
_DEFAULT_DTYPE = "bfloat16"
# As Llama 3.1 and 3.2 were trained; files have only the factors of the frequencies.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Texts that end a turn or a text in some chat template or family of models.
_TURN_ENDS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
        "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<eos>", "<EOT>", "_<EOT>", "[EOT]",
        "[EOS]", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>",
    }
)  # fmt: skip
_LARGEST_ROPE = 1 << 16
_TOLERANCE = 1e-4


def model_config(header: GgufHeader) -> dict[str, Any]:
    """Make a config.json of the metadata. Raises `ModelError` naming a key that is missing, of
    another type, or not understood."""
    fields = _Fields(header)
    fields.refuse_unknown()
    heads, width = fields.whole("attention.head_count"), fields.whole("embedding_length")
    embedding = fields.tensor(EMBEDDING, 2)
    head_dim = fields.whole("attention.key_length", default=width // heads)
    fields.must_be("attention.value_length", head_dim)
    fields.must_be("rope.dimension_count", head_dim)
    config: dict[str, Any] = {
        "architectures": [_CLASSES[fields.architecture]],
        "hidden_size": width,
        "intermediate_size": fields.whole("feed_forward_length"),
        "num_hidden_layers": fields.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.whole("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.whole("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("rope.freq_base", default=10_000.0),
        "rope_scaling": _rope_scaling(fields, head_dim),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": HEAD not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "dtype": _dtype(header.tensors),
        "bos_token_id": fields.token_id("bos"),
        "eos_token_id": _end_tokens(fields),
    }
    if fields.architecture == "qwen2":
        del config["head_dim"], config["attention_bias"]  # of its class: given, and with biases
        fields.must_be("attention.key_length", width // heads)
    return {key: value for key, value in config.items() if value is not None}


def _end_tokens(fields: _Fields) -> list[int]:
    """List the tokens that end an answer: those with a role, then those whose text ends a turn
    in one of the families of chat templates, as llama.cpp finds them."""
    roles = (fields.token_id(name) for name in ("eos", "eot", "eom"))
    found = [each for each in roles if each is not None]
    texts = fields.header.metadata.get("tokenizer.ggml.tokens")
    texts = texts if isinstance(texts, list) else []
    found += [token_id for token_id, text in enumerate(texts) if text in _TURN_ENDS]
    return list(dict.fromkeys(found))


def _dtype(tensors: Mapping[str, StoredTensor]) -> str:
    """Return the dtype for computing with the weights: the one of all matrices in the file, if they
    share one."""
    kinds = {tensor.kind.name for tensor in tensors.values() if len(tensor.shape) > 1}
    return _DTYPES.get(kinds.pop(), _DEFAULT_DTYPE) if len(kinds) == 1 else _DEFAULT_DTYPE


def _rope_scaling(fields: _Fields, head_dim: int) -> dict[str, Any] | None:
    kind = fields.text("rope.scaling.type", default="none")
    if kind not in ("none", "linear", "yarn"):
        raise fields.refusal("rope.scaling.type", kind, "one of none, linear, yarn")
    if ROPE_FACTORS in fields.header.tensors:
        return _llama3_scaling(fields, head_dim)
    if kind == "none":
        return None
    found = {"rope_type": kind, "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        original = fields.whole("rope.scaling.original_context_length")
        found["original_max_position_embeddings"] = original
    return found


def _llama3_scaling(fields: _Fields, head_dim: int) -> dict[str, Any]:
    """Find the numbers of Llama 3's scaling whose factors are those in the file."""
    found = _float32_values(fields.header, fields.tensor(ROPE_FACTORS, 1))
    factor = round(max(found), 3)
    theta = fields.number("rope.freq_base", default=10_000.0)
    wanted = [
        1 / _kept_share(2 * math.pi * theta ** (2 * pair / head_dim), factor)
        for pair in range(head_dim // 2)
    ]
    alike = len(found) == len(wanted) and all(
        math.isclose(one, other, rel_tol=_TOLERANCE)
        for one, other in zip(found, wanted, strict=True)
    )
    if not alike:
        raise ModelError(
            f"{fields.header.file}: {ROPE_FACTORS} holds factors of the rotary frequencies that "
            "are not those of Llama 3.1, the only ones that are read; use the model's checkpoint "
            "in Hugging Face's form"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _kept_share(wavelength: float, factor: float) -> float:
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    turns = _LLAMA3["original_max_position_embeddings"] / wavelength
    keep = min(max((turns - low) / (high - low), 0.0), 1.0)
    return (1 - keep) / factor + keep


def _float32_values(header: GgufHeader, tensor: StoredTensor) -> tuple[float, ...]:
    count = tensor.shape[0]
    if tensor.kind.name != "F32" or count > _LARGEST_ROPE:
        raise ModelError(
            f"{header.file}: {tensor.name} is {count} values of type {tensor.kind.name}, and up to "
            f"{_LARGEST_ROPE} of F32 are read; download the file again"
        )
    with header.file.open("rb") as opened:
        opened.seek(tensor.first_byte)
        data = memoryview(opened.read(tensor.size_bytes))
    return tuple(data.cast("f"))


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed values out of the metadata, by their keys below the architecture's."""

    header: GgufHeader

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name of the architecture, one that is read."""
        name = self.header.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in _CLASSES:
            shown = "missing" if name is None else repr(name)[:80]
            raise ModelError(
                f"{self.header.file}: general.architecture is {shown}; GGUF files are read of "
                f"{', '.join(_CLASSES)}: use the model's checkpoint in Hugging Face's form "
                "(config.json and *.safetensors)"
            )
        return name

    def refuse_unknown(self) -> None:
        """Raise `ModelError` for a file that is one of several, and for a field that would have to
        be computed by."""
        parts = self.header.metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise ModelError(
                f"{self.header.file}: is one of {parts} files; join them into one with llama.cpp's "
                "llama-gguf-split --merge"
            )
        prefix = f"{self.architecture}."
        for key, value in self.header.metadata.items():
            field = key.removeprefix(prefix)
            if not key.startswith(prefix) or field in _KNOWN or value in (0, False, 1.0):
                continue
            feature = _HINTS.get(field, "a feature")
            raise ModelError(
                f"{self.header.file}: {key} is {repr(value)[:60]}: {feature} that is not read "
                "from GGUF files; use the model's checkpoint in Hugging Face's form (config.json "
                "and *.safetensors)"
            )

    def whole(self, field: str, default: int | None = None) -> int:
        """Read a whole number of at least 1."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refusal(
                field, value, "a whole number of at least 1, the same for all layers"
            )
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """Read a finite number above 0, without the digits that float32 has not."""
        value = self._value(field, default)
        sound = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not sound or not 0 < value < math.inf:
            raise self.refusal(field, value, "a number above 0")
        return float(f"{value:.7g}")

    def text(self, field: str, default: str) -> str:
        """Read a text."""
        value = self._value(field, default)
        if not isinstance(value, str):
            raise self.refusal(field, value, "a text")
        return value

    def must_be(self, field: str, wanted: int) -> None:
        """Raise `ModelError` if the field is present and has another number."""
        value = self._value(field, wanted)
        if value != wanted:
            raise self.refusal(field, value, f"{wanted}, as a head of queries has elements")

    def token_id(self, role: str) -> int | None:
        """Return the id of the token with a role; None if no token has it."""
        key = f"tokenizer.ggml.{role}_token_id"
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(
                f"{self.header.file}: {key} is {repr(value)[:60]}; it must be a token's id: the "
                "file is damaged; download it again"
            )
        return value

    def tensor(self, name: str, dimensions: int) -> StoredTensor:
        """Return a tensor, which must have so many dimensions. Raises `ModelError`."""
        tensor = self.header.tensors.get(name)
        if tensor is None or len(tensor.shape) != dimensions:
            found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise ModelError(
                f"{self.header.file}: {name} is {found}, and a tensor of {dimensions} dimensions "
                "is needed; the file is no whole model: download it again"
            )
        return tensor

    def refusal(self, field: str, value: object, accepted: str) -> ModelError:
        """Return the error that names the accepted values of a metadata field."""
        shown = "missing" if value is None else repr(value)[:60]
        return ModelError(
            f"{self.header.file}: {self.architecture}.{field} is {shown}; it must be {accepted}: "
            "use another file of the model, or its checkpoint in Hugging Face's form"
        )

    def _value(self, field: str, default: object) -> Any:
        value = self.header.metadata.get(f"{self.architecture}.{field}")
        return default if value is None else value
