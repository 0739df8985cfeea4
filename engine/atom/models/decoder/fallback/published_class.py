"""Build a class of transformers whose attention calls the engine.

transformers asks a table for the attention function by its name, `config._attn_implementation`. The
engine's entry calls the function that `connect` attached to the layer's module. transformers makes
no mask for such an entry: the engine's attention has its own. transformers is imported when a model
needs it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from atom.models.decoder.fallback.attention_call import AttentionCall, FallbackRefusalError, Heads

# Computes a call: heads and its settings → [1, T, Hq, D].
Attend = Callable[[Heads, Mapping[str, Any]], torch.Tensor]
_NAME = "atom"
_CONNECTED = "_atom_attend"
_WARNING = "warn_if_padding_and_no_attention_mask"


def published_class(architecture: str) -> Any:
    """Return transformers' class. Raises `FallbackRefusalError` if there is none."""
    transformers = import_module("transformers")
    found = getattr(transformers, architecture, None)
    if found is None:
        raise FallbackRefusalError(
            f"transformers {transformers.__version__} has no class {architecture}; install a newer "
            "version of the package"
        )
    return found


def class_config(architecture: str, config: Mapping[str, Any]) -> Any:
    """Return transformers' configuration of a config.json. Raises `FallbackRefusalError`."""
    kind = published_class(architecture)
    with refusing("transformers refuses its config.json"):
        return kind.config_class.from_dict(dict(config))


def build_class(architecture: str, config: Any, *, attention: str = _NAME) -> Any:
    """Build the class on the current default device, in the current default dtype, with unfilled
    weights. attention: transformers' name of the function that attends. Raises
    `FallbackRefusalError`."""
    import_module("transformers").AttentionInterface.register(_NAME, _attend)
    without_init = import_module("transformers.initialization").no_init_weights
    kind, config = published_class(architecture), copy.deepcopy(config)
    doing = "the class cannot be built from this config.json with a function that attends for it"
    with refusing(doing), without_init():
        model = kind._from_config(
            config, dtype=torch.get_default_dtype(), attn_implementation=attention
        )
    for module in model.modules():
        if hasattr(module, _WARNING):  # it looks at the values of each step's tokens
            module.__dict__[_WARNING] = _say_nothing
    model.tie_weights()
    model.requires_grad_(False)
    return model.eval()


def _say_nothing(*given: Any) -> None:
    """Take the place of a warning about padding, which no step has."""


def connect(module: nn.Module, attend: Attend) -> None:
    """Let a module of the class attend by this function."""
    module.__dict__[_CONNECTED] = attend


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers calls it, by the function that the module is connected to."""
    if attention_mask is not None:
        raise FallbackRefusalError(
            f"{type(module).__name__}: makes a mask of its own, which the engine's attention does "
            "not take"
        )
    attend: Attend = module.__dict__[_CONNECTED]
    return attend(Heads(query, key, value), given), None


def recorded_calls(architecture: str, config: Any) -> tuple[AttentionCall, ...]:
    """Return the calls of every layer's attention: the class runs once on the meta device, without
    weights. Raises `FallbackRefusalError` for layers of another kind."""
    with torch.device("meta"):
        model = build_class(architecture, config)
    return calls_of(model)


def calls_of(model: Any) -> tuple[AttentionCall, ...]:
    """Return the calls of a model on the meta device. Raises `FallbackRefusalError`."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 2:
            raise FallbackRefusalError(
                f"{name} has {parameter.dim()} dimensions, as convolutions and stacked experts "
                "have; layers must be attention and an MLP"
            )
    calls: list[AttentionCall] = []
    for name, module in model.named_modules():
        connect(module, _recorder(name, calls))
    tokens = torch.zeros((1, 2), dtype=torch.int64, device="meta")
    with refusing("its forward pass does not run on flat tokens with positions"):
        with torch.inference_mode():
            model(input_ids=tokens, position_ids=tokens, use_cache=False, logits_to_keep=1)
    _check_layers(model, calls)
    return tuple(calls)


def stored_names(model: Any) -> dict[str, str]:
    """Return the names that checkpoints of the class have for its tensors, by the class's own names
    as far as these differ. Raises `FallbackRefusalError` for tensors that are stored in another
    form."""
    revert = getattr(
        import_module("transformers.core_model_loading"), "revert_weight_conversion", None
    )
    if revert is None:
        return {}
    own = model.state_dict(keep_vars=True)
    stored = {id(tensor): name for name, tensor in revert(model, dict(own)).items()}
    for name, tensor in own.items():
        if id(tensor) not in stored:
            raise FallbackRefusalError(
                f"{name}: checkpoints store it in another form, which transformers converts"
            )
    return {
        name: stored[id(tensor)] for name, tensor in own.items() if stored[id(tensor)] not in own
    }


def _recorder(name: str, calls: list[AttentionCall]) -> Attend:
    def record(heads: Heads, given: Mapping[str, Any]) -> torch.Tensor:
        calls.append(AttentionCall.read(name, heads, given))
        return torch.empty_like(heads.queries.transpose(1, 2))

    return record


def _check_layers(model: Any, calls: list[AttentionCall]) -> None:
    layers = getattr(model.config, "num_hidden_layers", None)
    names = [call.module for call in calls]
    if len(set(names)) != len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise FallbackRefusalError(f"{again} attends more than once in a forward pass")
    if len(calls) != layers:
        raise FallbackRefusalError(
            f"{len(calls)} modules attend by transformers' table of attention functions, and "
            f"num_hidden_layers is {layers}; others keep states, share keys or attend by themselves"
        )


@contextlib.contextmanager
def refusing(problem: str) -> Iterator[None]:
    """Turn an error of transformers' code, of any kind, into a refusal that begins with the
    problem; refusals pass."""
    try:
        yield
    except FallbackRefusalError:
        raise
    except Exception as error:  # the class is not ours
        raise FallbackRefusalError(f"{problem}: {_short(error)}") from error


def _short(error: Exception) -> str:
    """Return the text of an error of transformers' code, in one line with its kind."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 200 else f"{text[:197]}…"
