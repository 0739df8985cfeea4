"""Prove that a transformers' class computes the same with the engine's attention as by itself.

A narrow model of the class with the same flags and drawn weights (tiny_config.py) computes three
sequences twice on the CPU in float32. transformers computes each sequence as a whole. The engine
computes them over a paged cache, in chunks, several rows in a step, tokens one at a time, by its
reference operations. If any logits differ, the class is refused with the first module that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn

from atom.model_ops.attention import Attention
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.op_case import LayerShapes, OpCase
from atom.model_ops.linear import Build
from atom.models.decoder.fallback.attention_call import (
    AttentionCall,
    FallbackRefusalError,
    FallbackSpec,
)
from atom.models.decoder.fallback.fallback_decoder import FallbackDecoder
from atom.models.decoder.fallback.published_class import build_class, recorded_calls, refusing
from atom.models.decoder.fallback.tiny_config import VOCABULARY, tiny_config
from atom.utils.default_dtype import default_dtype
from atom.utils.forward_context import AttentionMetaData, ForwardContext, set_forward_context

TOLERANCE = 1e-4
_BLOCK, _BLOCKS = 4, 12  # tokens of a block, blocks of a sequence
_LENGTHS = (19, 31, 9)
# The steps of the engine's pass: rows of a sequence, its first token of the step, and the end.
_Row = tuple[int, int, int]
_STEPS: tuple[tuple[_Row, ...], ...] = (
    ((0, 0, 9), (1, 0, 18)),
    ((0, 9, 10), (1, 18, 30), (2, 0, 7)),
    ((0, 10, 11), (1, 30, 31), (2, 7, 8)),
    ((2, 8, 9), (0, 11, 19)),
)


def prove(architecture: str, config: Any, calls: Sequence[AttentionCall]) -> None:
    """Compare both ways of computing the class. calls: of the model that is to be served. Raises
    `FallbackRefusalError` if they differ, or if the narrow model lacks a rule of attention that the
    served one has."""
    with refusing("it cannot be proven on a narrow model"):
        small = tiny_config(config)
        spec = FallbackSpec(small, architecture, recorded_calls(architecture, small))
        whole = _whole_model(architecture, small)
        unproven = {call.kind for call in calls} - {call.kind for call in spec.calls}
        if unproven:
            raise FallbackRefusalError(
                "a narrow model of its class has no layer with the same bound of scores or window, "
                "so these cannot be proven"
            )
        _compare(spec, whole)


def _whole_model(architecture: str, config: Any) -> Any:
    """Build transformers' own narrow model on the CPU, with drawn weights."""
    with default_dtype(torch.float32), torch.device("cpu"):
        model = build_class(architecture, config, attention="eager")
    draw = torch.Generator().manual_seed(11)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=draw)
        if parameter.dim() == 2:
            parameter.data.copy_(noise * 1.5 * parameter.shape[1] ** -0.5)
        else:
            parameter.data.copy_(0.5 + 0.3 * noise)
    return model


def _compare(spec: FallbackSpec, whole: Any) -> None:
    shapes = LayerShapes.of([call.shape for call in spec.calls], ())
    case = OpCase(
        dtype=torch.float32, kv_dtype=torch.float32, layers=shapes, block_size=_BLOCK,
        activations=(),
    )  # fmt: skip
    ops = resolve_ops("cpu", case, "torch_ref", {}).ops
    with default_dtype(torch.float32), torch.device("cpu"):
        engine = FallbackDecoder(spec, Build(ops))
    engine.published.load_state_dict(whole.state_dict())
    _take_cache(engine)
    draw = torch.Generator().manual_seed(5)
    prompts = [torch.randint(2, VOCABULARY, (length,), generator=draw) for length in _LENGTHS]
    with torch.inference_mode(), torch.device("cpu"):
        expected = [_whole_logits(whole, each) for each in prompts]
        for rows in _STEPS:
            got = _step(engine, prompts, rows)
            wanted = torch.cat([expected[row][first:end] for row, first, end in rows])
            worst = (got - wanted).abs().max().item()
            if not worst <= TOLERANCE:
                raise FallbackRefusalError(
                    f"logits of a narrow model differ from transformers' by {worst:.2g} "
                    f"({_first_difference(engine, whole, prompts)})"
                )


def _whole_logits(whole: Any, prompt: torch.Tensor) -> torch.Tensor:
    """Compute a sequence as transformers does. Without a mask of padding, MoshiForCausalLM of
    transformers 5.17 lets each token attend to later ones."""
    ids = prompt[None]
    found = whole(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return cast(torch.Tensor, found.logits[0])


def _take_cache(engine: FallbackDecoder) -> None:
    for layer in cast(Iterable[Attention], engine.layers):
        layout = layer.cache_layout(_BLOCK, torch.float32)
        blocks = len(_LENGTHS) * _BLOCKS
        layer.bind(
            [torch.zeros((blocks, *each.shape), dtype=each.dtype) for each in layout.tensors], 0
        )


def _step(
    engine: FallbackDecoder, prompts: Sequence[torch.Tensor], rows: Sequence[_Row]
) -> torch.Tensor:
    """Compute the rows of a step; decodes come first. Returns the logits of all its tokens."""
    starts, slots, positions, tokens = [0], [], [], []
    for row, first, end in rows:
        at = torch.arange(first, end)
        starts.append(starts[-1] + end - first)
        slots.append(row * _BLOCKS * _BLOCK + at)
        positions.append(at)
        tokens.append(prompts[row][first:end])
    decodes = 0
    for _, first, end in rows:
        if end - first > 1:
            break
        decodes += 1
    tables = [torch.arange(row * _BLOCKS, (row + 1) * _BLOCKS) for row, _, _ in rows]
    metadata = AttentionMetaData(
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([end for _, _, end in rows], dtype=torch.int32),
        block_tables=torch.stack(tables).to(torch.int32),
        slot_mapping=torch.cat(slots),
        num_decodes=decodes,
        max_query_len=max(end - first for _, first, end in rows),
        max_context_len=max(end for _, _, end in rows),
    )
    with set_forward_context(ForwardContext(attention=(metadata,))):
        return engine(torch.cat(tokens), torch.cat(positions)).last


def _first_difference(engine: FallbackDecoder, whole: Any, prompts: Sequence[torch.Tensor]) -> str:
    """Name the first module whose output differs for one whole sequence."""
    ours: dict[str, torch.Tensor] = {}
    theirs: dict[str, torch.Tensor] = {}
    hooks = [*_watch(engine.published, ours), *_watch(whole, theirs)]
    try:
        _step(engine, prompts, ((1, 0, len(prompts[1])),))
        _whole_logits(whole, prompts[1])
    finally:
        for hook in hooks:
            hook.remove()
    for name, expected in theirs.items():
        got = ours.get(name)
        if got is None or got.shape != expected.shape or _differ(got, expected):
            return f"the first module that differs is {name}"
    return "modules differ only where chunks and other rows share a step"


def _differ(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return not bool((got - expected).abs().max() <= TOLERANCE)


def _watch(model: nn.Module, outputs: dict[str, torch.Tensor]) -> list[Any]:
    """Store the first tensor of each module's output, in the order in which modules end."""

    def store(name: str) -> Any:
        def keep(module: nn.Module, given: Any, found: Any) -> None:
            first = found[0] if isinstance(found, tuple | list) and found else found
            if isinstance(first, torch.Tensor) and first.is_floating_point():
                outputs.setdefault(name, first.detach().clone())

        return keep

    return [
        module.register_forward_hook(store(name)) for name, module in model.named_modules() if name
    ]
