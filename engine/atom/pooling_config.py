"""Pooling of a model: the result that it returns for a prompt, from its checkpoint and the options.

Decoders are pooled at their last token: the state after the last norm for an embedding (as in
Qwen3-Embedding), or the logits of two tokens for a score (as in Qwen3-Reranker).
sentence-transformers' files (modules.json and the folders that it names) select one of them;
without these files the options do. Any other module in the files is refused by name. Torch-free;
called by `build_config` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from atom.bounded_input.bounded_json import read_json_file
from atom.checkpoint import Checkpoint
from atom.errors import ConfigError, ModelError
from atom.model_source.json_object import read_json
from atom.sizing.options.model import Convert, Runner
from atom.sizing.text_part import text_part

PoolingKind = Literal["embed", "classify"]

MODULES_FILE = "modules.json"
_TRANSFORMER, _POOLING, _NORMALIZE, _LOGIT_SCORE = (
    "Transformer",
    "Pooling",
    "Normalize",
    "LogitScore",
)
_YES_NO = ("no", "yes")  # Qwen3-Reranker's; vLLM's field classifier_from_token names others


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """The conversion of a prompt's last token to the result. normalized: embeddings have length 1.
    token_ids, token_texts: for a score, the tokens of its two answers, no and yes, by id if the
    checkpoint has ids, else by text."""

    kind: PoolingKind
    normalized: bool = True
    token_ids: tuple[int, int] | None = None
    token_texts: tuple[str, str] = _YES_NO


def pooling_config(
    checkpoint: Checkpoint, runner: Runner, convert: Convert
) -> PoolingConfig | None:
    """Return the pooling that the options or the checkpoint's own files request; None to generate.
    Raises `ConfigError` for options that contradict each other, `ModelError` for an unsupported
    pooling."""
    if runner == "generate" or (runner == "auto" and convert == "none"):
        if convert not in ("auto", "none"):
            raise ConfigError(f"convert {convert} is for a pooling model; use --runner pooling")
        return None
    if runner == "pooling" and convert == "none":
        raise ConfigError(
            "convert none: no model of this engine is a pooling model by itself; use --convert "
            "embed or classify"
        )
    found = _of_modules(checkpoint)
    if found is None and runner == "auto" and convert == "auto":
        return None
    _check_causal(checkpoint)
    kind = convert if convert in ("embed", "classify") else None
    if found is None:
        found = PoolingConfig(kind="classify" if kind == "classify" else "embed")
    elif kind not in (None, found.kind):
        raise ConfigError(
            f"convert {kind}: {checkpoint.path / MODULES_FILE} says that this model is to "
            f"{found.kind}; leave the option out"
        )
    if found.kind == "classify" and found.token_ids is None:
        return PoolingConfig(kind="classify", token_texts=_classifier_tokens(checkpoint))
    return found


def _of_modules(checkpoint: Checkpoint) -> PoolingConfig | None:
    """Read the pooling from sentence-transformers' files; return None if the checkpoint has
    none."""
    file = checkpoint.path / MODULES_FILE
    if not file.is_file():
        return None
    modules = _modules(file)
    names = list(modules)
    if names[:1] != [_TRANSFORMER]:
        raise ModelError(f"{file}: must begin with a Transformer; download the folder again")
    rest = names[1:]
    if rest == [_LOGIT_SCORE]:
        return _logit_score(modules[_LOGIT_SCORE])
    if rest in ([], [_POOLING], [_POOLING, _NORMALIZE]):
        if _POOLING in modules:
            _check_last_token(modules[_POOLING])
        return PoolingConfig(kind="embed", normalized=not rest or _NORMALIZE in rest)
    raise ModelError(
        f"{file}: the modules {', '.join(rest)} behind the Transformer are not computed here; "
        "Pooling of the last token, Normalize and LogitScore are"
    )


def _modules(file: Path) -> dict[str, Path]:
    """Return the folders of modules by the last words of their types, in order."""
    try:
        rows = read_json_file(file)
        return {
            str(row["type"]).rpartition(".")[2]: file.parent / Path(str(row["path"])).name
            for row in rows
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{file}: is no list of sentence-transformers' modules ({error}); download it again"
        ) from error


def _check_last_token(folder: Path) -> None:
    settings = read_json(folder / "config.json")
    named = settings.get("pooling_mode")
    modes = {named} if isinstance(named, str) else {
        name.removeprefix("pooling_mode_")
        for name, on in settings.items()
        if name.startswith("pooling_mode_") and on is True
    }  # fmt: skip
    if modes != {"lasttoken"}:
        raise ModelError(
            f"{folder / 'config.json'}: pools by {', '.join(sorted(modes)) or 'nothing'}; "
            "only the last token (pooling_mode_lasttoken) is pooled here"
        )


def _logit_score(folder: Path) -> PoolingConfig:
    settings = read_json(folder / "config.json")
    no, yes = settings.get("false_token_id"), settings.get("true_token_id")
    if not (isinstance(no, int) and isinstance(yes, int)):
        raise ModelError(
            f"{folder / 'config.json'}: scores by one token; scores of two, true_token_id and "
            "false_token_id, are computed here"
        )
    return PoolingConfig(kind="classify", token_ids=(no, yes))


def _classifier_tokens(checkpoint: Checkpoint) -> tuple[str, str]:
    named: Any = checkpoint.config.get("classifier_from_token")
    if named is None:
        return _YES_NO
    if isinstance(named, list) and len(named) == 2 and all(isinstance(each, str) for each in named):
        return (named[0], named[1])
    raise ModelError(
        f"{checkpoint.path / 'config.json'}: classifier_from_token must name two tokens, no and yes"
    )


def _check_causal(checkpoint: Checkpoint) -> None:
    config: Mapping[str, Any] = text_part(checkpoint.config)
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        raise ModelError(
            f"{checkpoint.path / 'config.json'}: asks for attention in both directions, which is "
            "not computed here; use an embedding model with causal attention, such as "
            "Qwen3-Embedding"
        )


def as_causal_model(config: Mapping[str, Any], architectures: frozenset[str]) -> dict[str, Any]:
    """Return a pooling checkpoint's config.json with the architecture of the generating model, if
    `architectures` has it, in place of the one without a head (Qwen3Model)."""
    names = config.get("architectures") or []
    name = str(names[0]) if names else ""
    causal = f"{name.removesuffix('Model')}ForCausalLM"
    if name.endswith("Model") and causal in architectures:
        return {**config, "architectures": [causal]}
    return dict(config)
