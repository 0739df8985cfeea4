"""The features of models that this version's engine supports, for engine and operator.

The engine refuses an unsupported model before it loads anything, the operator before a pod exists.
A site whose images support more architectures names them; then only sizes are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from atom.sizing.architectures import LACKING, SERVED
from atom.sizing.attention.kinds import EntriesAttention
from atom.sizing.layers import PLAIN_BLOCK, ExpertsBlock
from atom.sizing.model_facts import ModelFacts
from atom.sizing.quantization import Element, Quantization
from atom.sizing.text_part import WRAPPERS

SUPPORTED_ROPE_TYPES = (
    "default",
    "linear",
    "dynamic",
    "yarn",
    "longrope",
    "llama3",
    "proportional",
)
SUPPORTED_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
SUPPORTED_WITHOUT_GATE = ("relu2",)
SUPPORTED_IN_ENCODERS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
SUPPORTED_KV_DTYPES = ("bf16", "fp32", "fp8")
# Drafted by look-up in texts, which costs next to nothing; by layers, with weights and a cache, of
# the model's own checkpoint or of another one.
LOOKED_UP_METHODS = ("ngram", "suffix")
DRAFT_CHECKPOINT_METHODS = ("eagle3", "draft_model")
LAYER_METHODS = ("mtp", *DRAFT_CHECKPOINT_METHODS)
SUPPORTED_DRAFT_METHODS = (*LOOKED_UP_METHODS, *LAYER_METHODS)
SUPPORTED_FORMATS = (
    "fp8 with a scale per matrix, output or block (fp8, fbgemm_fp8, compressed-tensors, quark, "
    "modelopt), "
    "int8 with a scale per matrix or output (compressed-tensors), int4 in groups of inputs in "
    "their own or another order (awq, gptq, compressed-tensors), mxfp4 (quark, "
    "compressed-tensors, and gpt-oss' experts), nvfp4, mxfp8 and mxfp6 converted to fp8 with a "
    "scale per output (modelopt, compressed-tensors, mxfp8)"
)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A feature that the engine does not support: the key of config.json, and the reason in
    words."""

    field: str
    message: str


def unsupported(facts: ModelFacts, beyond: Collection[str] = ()) -> tuple[Unsupported, ...]:
    """Return the model's features that the engine does not support; empty if it supports the model.

    `beyond`: architectures that other engine images run, with any form of checkpoint; "*" for all.
    """
    if facts.architecture in beyond or "*" in beyond:
        return ()
    if facts.architecture not in SERVED:
        return (unsupported_architecture(facts.architecture),)
    return tuple(_forms(facts))


def unsupported_architecture(name: str, nearest: str = "") -> Unsupported:
    """Return the refusal of an architecture, whether it can be sized or not. nearest: a description
    of the most similar supported one."""
    like = f": {LACKING[name]}" if name in LACKING else ""
    like += f"; the nearest that runs is {nearest}" if nearest else ""
    supported, wrapped = ", ".join(SERVED), ", ".join(WRAPPERS)
    return Unsupported(
        "architectures",
        f"architecture {name} is not supported{like}; this version of the engine runs {supported}, "
        f"and of {wrapped} the text part",
    )


def kv_cache_problems(facts: ModelFacts, kv_cache_dtype: str) -> Iterator[str]:
    """Yield the reasons why a model's cache cannot have elements of this type; none if it can."""
    entries = any(isinstance(each.layer.attention, EntriesAttention) for each in facts.layer_counts)
    if entries and kv_cache_dtype == "fp8":
        yield (
            f"the cache of {facts.architecture} keeps what entries are summed up of, for which fp8 "
            "has too few digits; use auto, bf16 or fp32"
        )


def format_problem(block: ExpertsBlock, quantization: Quantization) -> str:
    """Return the reason why the engine does not compute with a format of matrices, "" if it does.
    block: of the experts in this format, PLAIN_BLOCK for other matrices."""
    if quantization.bits == 8 and quantization.input_bits != 8:
        return "is to be multiplied with 16-bit inputs"
    if quantization.element is Element.INT8 and quantization.granularity == "block":
        return "has no kernel"
    if block.stacking.in_modules:
        apart = quantization.method != "mxfp4"
        return "" if apart else "is one of experts in one tensor, which gpt-oss has"
    if quantization.online or _is_stacked(block, quantization):
        return ""
    others = ", ".join((*block.stacked_by, *block.parted_by)) or "none"
    return f"is none of this model's experts in one tensor (which are: {others})"


def _is_stacked(block: ExpertsBlock, quantization: Quantization) -> bool:
    """Return whether a format is one that experts in one tensor may have: of Granite's the one with
    a scale of each output."""
    if quantization.converted is not None:
        return False
    by_outputs = quantization.bits == 8 and quantization.granularity == "row"
    compressed = quantization.method == "compressed-tensors"
    return quantization.method in block.stacked_by and (by_outputs or not compressed)


def _formats(facts: ModelFacts) -> Iterator[Unsupported]:
    """Yield the quantisation formats of the model that the engine does not compute."""
    assert facts.quantization is not None
    of_experts = {
        stored
        for alike in (*facts.layer_counts, *facts.mtp_counts)
        for name, stored in alike.layer.formats
        if ".experts.0." in name
    }
    for quantization in facts.quantization.formats:
        block = facts.experts_block if quantization in of_experts else PLAIN_BLOCK
        reason = format_problem(block, quantization)
        if not reason:
            continue
        yield Unsupported(
            "quantization_config",
            f"the format {quantization} {reason}, which is not supported; supported: "
            f"{SUPPORTED_FORMATS}; use such a checkpoint of this model, or a plain one with "
            "--quantization",
        )


def fallback_notice(facts: ModelFacts) -> str:
    """Return the warning about a model that transformers' own class computes, "" for others."""
    if not facts.is_fallback:
        return ""
    return (
        f"{facts.architecture} has no family here: transformers' class computes it, with the "
        "engine's attention, which is slower than a family and unproven on real weights"
    )


def _fallback_forms(facts: ModelFacts) -> Iterator[Unsupported]:
    """Yield the settings of a checkpoint without a family that transformers' class, or the proof of
    it, does not cover."""
    if facts.quantization is not None:
        yield Unsupported(
            "quantization_config",
            f"{facts.architecture} has no family here, so quantised matrices are not supported; "
            "use a checkpoint in float32, bfloat16 or float16, and no --quantization",
        )
    growing = sorted({"dynamic", "longrope"}.intersection(facts.rope.kinds.split(", ")))
    if growing:
        yield Unsupported(
            "rope_scaling",
            f"{facts.architecture} has no family here, and rope type {growing[0]!r} scales all "
            "requests of a step by the longest of them; supported: ropes that scale each position "
            "by itself, such as default, linear, yarn and llama3",
        )


def _forms(facts: ModelFacts) -> Iterator[Unsupported]:
    """Yield the settings of a supported architecture's checkpoint that the engine does not
    compute."""
    row = SERVED[facts.architecture]
    scheme = facts.quantization
    if facts.is_fallback:
        yield from _fallback_forms(facts)
        return
    if scheme is not None and facts.is_encoder:
        yield Unsupported(
            "quantization_config",
            f"a {facts.architecture} quantised by the method {scheme.method} is not supported; "
            "use a checkpoint in float32, bfloat16 or float16 without quantization_config, and no "
            "--quantization",
        )
    elif scheme is not None and row.written_by and scheme.method not in row.written_by:
        yield Unsupported(
            "quantization_config",
            f"a {facts.architecture} quantised by the method {scheme.method} is not supported; "
            f"supported: {', '.join(row.written_by)}, as its authors publish it; use such a "
            "checkpoint, or one in bfloat16 without quantization_config, and no --quantization",
        )
    elif scheme is not None:
        yield from _formats(facts)
    kinds = set(facts.rope.kinds.split(", "))
    if not kinds <= set(SUPPORTED_ROPE_TYPES):
        unknown = ", ".join(sorted(kinds.difference(SUPPORTED_ROPE_TYPES)))
        yield Unsupported(
            "rope_scaling",
            f"rope type {unknown!r} is not supported; supported: {', '.join(SUPPORTED_ROPE_TYPES)}",
        )
    gated = all(alike.layer.mlp.gated for alike in facts.layer_counts)
    activations: tuple[str, ...] = SUPPORTED_ACTIVATIONS if gated else SUPPORTED_WITHOUT_GATE
    if row.silu_alone:
        activations = ("silu",)
    if facts.is_encoder:
        activations = SUPPORTED_IN_ENCODERS
    if facts.hidden_act not in activations:
        yield Unsupported(
            "hidden_act",
            f"hidden_act {facts.hidden_act!r} is not supported; supported: "
            f"{', '.join(activations)}",
        )
