"""Sizing: the memory that a model needs and that a device can hold, as pure arithmetic.

The engine (with measured numbers) and the operator (with predicted ones) share this arithmetic.
Standard library and msgspec only; no torch, client or clock; no file is read or written. Every
quantity is an integer number of bytes or tokens, per device. The sizes of a model (model_facts,
weights, kv_layout) are independent of the support by this version's engine (engine_support).
"""

from __future__ import annotations

from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.attention.kinds import AttentionFacts, CacheKind, Latent
from atom.sizing.cache_groups import CacheGroup
from atom.sizing.drafting import draft_problems, spread_problems
from atom.sizing.engine_support import (
    SUPPORTED_KV_DTYPES,
    Unsupported,
    fallback_notice,
    kv_cache_problems,
    unsupported,
    unsupported_architecture,
)
from atom.sizing.errors import (
    DoesNotFitError,
    DoesNotFitReason,
    ModelFactsError,
    SizingError,
    UnknownFamilyError,
)
from atom.sizing.kernel_padding import aiter_expert_unit, aiter_position_bytes
from atom.sizing.kv_budget import (
    Concurrency,
    KvBudget,
    checkpoint_tokens,
    concurrency_table,
    filling_tokens,
    plan_kv_cache,
    running_sequences,
)
from atom.sizing.kv_layout import (
    KV_ELEMENTS,
    NO_SPECULATION,
    KvElement,
    KvLayout,
    KvTerm,
    Speculation,
    StateTerm,
    kv_bytes_per_token,
    kv_layout,
    kv_terms,
    state_terms,
)
from atom.sizing.layers import (
    Experts,
    LayerCount,
    LayerFacts,
    MlpFacts,
)
from atom.sizing.limits import DeviceMemory, RunLimits
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.beside_encoder import EncoderOptions, encoder_problems
from atom.sizing.options.beside_fallback import fallback_problems
from atom.sizing.overheads import (
    LoraRoom,
    activation_bytes,
    communication_bytes,
    image_bytes,
    lora_bytes,
    runtime_overhead_bytes,
)
from atom.sizing.parallelism import (
    MAX_TENSOR_PARALLEL,
    ExpertOptions,
    expert_parallel_problem,
    tensor_parallel_problems,
    valid_tensor_parallel_sizes,
)
from atom.sizing.quantization import Quantization
from atom.sizing.quantization.online import ONLINE, online_scheme
from atom.sizing.quantization.scheme import QuantizationScheme
from atom.sizing.reproducibility import ReproducibleOptions, reproducible_problems
from atom.sizing.rotary_table_bytes import position_bytes, rotary_bytes
from atom.sizing.states import StateKind, StateNet
from atom.sizing.weights import Sharding, WeightPart

__all__ = [
    "ARCHITECTURES",
    "KV_ELEMENTS",
    "MAX_TENSOR_PARALLEL",
    "NO_SPECULATION",
    "ONLINE",
    "SUPPORTED_KV_DTYPES",
    "AttentionFacts",
    "CacheGroup",
    "CacheKind",
    "Concurrency",
    "DeviceMemory",
    "DoesNotFitError",
    "DoesNotFitReason",
    "EncoderOptions",
    "ExpertOptions",
    "Experts",
    "KvBudget",
    "KvElement",
    "KvLayout",
    "KvTerm",
    "Latent",
    "LayerCount",
    "LayerFacts",
    "LoraRoom",
    "MlpFacts",
    "ModelFacts",
    "ModelFactsError",
    "Quantization",
    "QuantizationScheme",
    "ReproducibleOptions",
    "RunLimits",
    "Sharding",
    "SizingError",
    "Speculation",
    "StateKind",
    "StateNet",
    "StateTerm",
    "UnknownFamilyError",
    "Unsupported",
    "WeightPart",
    "activation_bytes",
    "aiter_expert_unit",
    "aiter_position_bytes",
    "checkpoint_tokens",
    "communication_bytes",
    "concurrency_table",
    "draft_problems",
    "encoder_problems",
    "expert_parallel_problem",
    "fallback_notice",
    "fallback_problems",
    "filling_tokens",
    "image_bytes",
    "kv_bytes_per_token",
    "kv_cache_problems",
    "kv_layout",
    "kv_terms",
    "lora_bytes",
    "online_scheme",
    "plan_kv_cache",
    "position_bytes",
    "reproducible_problems",
    "rotary_bytes",
    "running_sequences",
    "runtime_overhead_bytes",
    "spread_problems",
    "state_terms",
    "tensor_parallel_problems",
    "unsupported",
    "unsupported_architecture",
    "valid_tensor_parallel_sizes",
]
