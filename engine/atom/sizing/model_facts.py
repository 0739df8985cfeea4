"""ModelFacts: the numbers of a decoder-only model that decide what it occupies.

Read from a Hugging Face config.json; knows no tensors, files or devices. Parameter counts are
exact for the architectures in SUPPORTED_ARCHITECTURES: a test compares them with real modules.
Absent keys mean what transformers' configuration classes make of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atom.sizing.errors import ModelFactsError

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM")

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ROPE_TYPES = ("default", "llama3")
# transformers' Qwen3Config fixes the head size when config.json does not; LlamaConfig divides.
_QWEN3_HEAD_DIM = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Shape of one model. `weight_dtype_bytes` is the checkpoint's own element size."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    weight_dtype_bytes: int
    qk_norm: bool
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def from_hf_config(cls, config: Mapping[str, object]) -> ModelFacts:
        """Facts of a config.json; raises ModelFactsError naming the key and what is accepted."""
        architecture = _architecture(config)
        if config.get("quantization_config") is not None:
            raise ModelFactsError(
                "config.json has quantization_config: quantised checkpoints are not supported; "
                "use the bfloat16 checkpoint of this model",
                field="quantization_config",
            )
        _require_full_attention(config)
        _require_known_rope(config)
        hidden_size = _positive(config, "hidden_size")
        heads = _positive(config, "num_attention_heads")
        qwen3 = architecture == "Qwen3ForCausalLM"
        kv_heads = _positive(config, "num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise ModelFactsError(
                f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}",
                field="num_key_value_heads",
            )
        return cls(
            architecture=architecture,
            num_layers=_positive(config, "num_hidden_layers"),
            hidden_size=hidden_size,
            num_attention_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_positive(
                config, "head_dim", default=_QWEN3_HEAD_DIM if qwen3 else hidden_size // heads
            ),
            intermediate_size=_positive(config, "intermediate_size"),
            vocab_size=_positive(config, "vocab_size"),
            max_position_embeddings=_positive(config, "max_position_embeddings"),
            tie_word_embeddings=_flag(config, "tie_word_embeddings"),
            weight_dtype_bytes=_dtype_bytes(config),
            qk_norm=qwen3,
            attention_bias=_flag(config, "attention_bias"),
            mlp_bias=not qwen3 and _flag(config, "mlp_bias"),
        )

    def kv_heads_per_rank(self, tensor_parallel: int = 1) -> int:
        """KV heads that one rank holds: split while there are enough, replicated beyond that."""
        return max(1, self.num_kv_heads // tensor_parallel)

    def parameter_count(self) -> int:
        """Parameters of the whole model; a tied output head is counted once, as the embedding."""
        return self._parameters_per_rank(1)

    def weight_bytes(self, dtype_bytes: int | None = None, tensor_parallel: int = 1) -> int:
        """Bytes of weights on one rank; None keeps the checkpoint's element size.

        Projections and vocabulary rows are divided by `tensor_parallel`, norms are replicated, KV
        projections are replicated when there are more ranks than KV heads.
        """
        element_bytes = self.weight_dtype_bytes if dtype_bytes is None else dtype_bytes
        return self._parameters_per_rank(tensor_parallel) * element_bytes

    def _parameters_per_rank(self, ranks: int) -> int:
        vocab_rows = _ceil_div(self.vocab_size, ranks)
        embeddings = vocab_rows * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_layers * self._layer_parameters(ranks) + self.hidden_size

    def _layer_parameters(self, ranks: int) -> int:
        query = _ceil_div(self.num_attention_heads, ranks) * self.head_dim
        key_value = 2 * self.kv_heads_per_rank(ranks) * self.head_dim
        mlp_width = _ceil_div(self.intermediate_size, ranks)
        count = self.hidden_size * (2 * query + key_value + 3 * mlp_width)
        count += 2 * self.hidden_size  # the two RMSNorms
        if self.qk_norm:
            count += 2 * self.head_dim
        if self.attention_bias:
            count += query + key_value + self.hidden_size
        if self.mlp_bias:
            count += 2 * mlp_width + self.hidden_size
        return count


def _require_full_attention(config: Mapping[str, object]) -> None:
    """Layers with a window hold less KV cache, and the engine does not compute them."""
    if _flag(config, "use_sliding_window"):
        raise ModelFactsError(
            "config.json: use_sliding_window is not supported; set it to false if the model's "
            "layers all attend in full",
            field="use_sliding_window",
        )


def _require_known_rope(config: Mapping[str, object]) -> None:
    """Refused here as by the engine, so that nothing is planned that would not start."""
    for field in ("rope_parameters", "rope_scaling"):
        scaling = config.get(field)
        if not isinstance(scaling, Mapping) or not scaling:
            continue
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in _ROPE_TYPES:
            raise ModelFactsError(
                f"config.json: {field}: rope type {kind!r} is not supported; supported: "
                f"{', '.join(_ROPE_TYPES)}",
                field=field,
            )
        return


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _architecture(config: Mapping[str, object]) -> str:
    value = config.get("architectures")
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    if not isinstance(value, (list, tuple)) or len(value) != 1:
        raise ModelFactsError(
            f"config.json: architectures must be a list of one name, got {value!r}; "
            f"supported: {supported}",
            field="architectures",
        )
    if value[0] not in SUPPORTED_ARCHITECTURES:
        raise ModelFactsError(
            f"config.json: architecture {value[0]!r} is not supported; supported: {supported}",
            field="architectures",
        )
    return str(value[0])


def _positive(config: Mapping[str, object], key: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # YAML and JSON tools turn large integers into floats
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "is missing" if config.get(key) is None else f"is {config[key]!r}"
        raise ModelFactsError(
            f"config.json: {key} {found}; it must be a positive integer", field=key
        )
    return value


def _flag(config: Mapping[str, object], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelFactsError(
            f"config.json: {key} is {value!r}; it must be true or false", field=key
        )
    return bool(value)


def _dtype_bytes(config: Mapping[str, object]) -> int:
    """Element size; transformers 5 writes `dtype`, older ones `torch_dtype`; absent is float32."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(key)
    name = "float32" if value is None else str(value).removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise ModelFactsError(
            f"config.json: {key} is {value!r}; supported: {', '.join(sorted(_DTYPE_BYTES))}",
            field=key,
        )
    return _DTYPE_BYTES[name]
