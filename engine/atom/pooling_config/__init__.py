"""Pooling of a model: the result that it returns for a prompt, from its checkpoint and the options.

Decoders are pooled at their last token: the state after the last norm for an embedding (as in
Qwen3-Embedding), or the logits of two tokens for a score (as in Qwen3-Reranker). Encoders are
always pooled: by their first token, the mean of all or another rule for an embedding, or through
their head of labels for a score. sentence-transformers' files (modules.json and the folders that it
names) select the pooling; without these files the options do. Any other module in the files is
refused by name. Torch-free; called by `build_config` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from atom.bounded_input.bounded_json import read_json_file
from atom.checkpoint import Checkpoint
from atom.errors import ConfigError, ModelError
from atom.model_source.json_object import read_json
from atom.pooling_config.embedding_prompts import EmbeddingPrompts, read_prompts
from atom.sizing.config_fields import texts
from atom.sizing.config_schema import FIELDS
from atom.sizing.families.encoder_rows import ENCODERS
from atom.sizing.families.encoders import label_count
from atom.sizing.options.model import Convert, Runner
from atom.sizing.text_part import architectures_of, text_part

PoolingKind = Literal["embed", "classify"]
TokenPooling = Literal["lasttoken", "cls", "mean", "max", "mean_sqrt_len_tokens"]
LabelScore = Literal["logit", "sigmoid"]

MODULES_FILE = "modules.json"
_TRANSFORMER, _POOLING, _NORMALIZE, _LOGIT_SCORE, _DENSE = (
    "Transformer",
    "Pooling",
    "Normalize",
    "LogitScore",
    "Dense",
)
_YES_NO = ("no", "yes")  # Qwen3-Reranker's; vLLM's field classifier_from_token names others
_TOKENS: dict[str, TokenPooling] = {
    "lasttoken": "lasttoken",
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "max": "max",
    "max_tokens": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
_OF_ONE_TOKEN: tuple[TokenPooling, ...] = ("cls", "lasttoken")  # whatever stands beside it
_LENGTH_FILES = "sentence_*_config.json"  # with the longest text of the model's training
_ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
_LABEL_SCORES: dict[str, LabelScore] = {"Identity": "logit", "Sigmoid": "sigmoid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """A matrix behind the pooling. file: its weights; inputs, outputs: of the matrix; activation:
    behind it, "" for none."""

    file: Path
    inputs: int
    outputs: int
    bias: bool = True
    activation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """The conversion of a prompt's hidden states to the result.

    - `tokens`: whose states are pooled; `dense`: matrices behind; `normalized`: embeddings have
      length 1; `max_tokens`: of a text, as the model's files say, None if they do not.
    - `token_ids`, `token_texts`: for a decoder's score, the tokens of its two answers, no and yes,
      by id if the checkpoint has ids, else by text.
    - `prompts`: in front of the inputs of an embedding.
    - `label`: for an encoder's score, the conversion of its head's number; None without a head.
    """

    kind: PoolingKind
    normalized: bool = True
    tokens: TokenPooling = "lasttoken"
    dense: tuple[DenseLayer, ...] = ()
    max_tokens: int | None = None
    token_ids: tuple[int, int] | None = None
    token_texts: tuple[str, str] = _YES_NO
    label: LabelScore | None = None
    prompts: EmbeddingPrompts = field(default_factory=EmbeddingPrompts)

    def size(self, hidden_size: int) -> int:
        """Return the numbers of an embedding."""
        return self.dense[-1].outputs if self.dense else hidden_size


def pooling_config(
    checkpoint: Checkpoint, runner: Runner, convert: Convert
) -> PoolingConfig | None:
    """Return the pooling that the options or the checkpoint's own files request; None to generate.
    Raises `ConfigError` for options that contradict each other, `ModelError` for an unsupported
    pooling."""
    found = _pooling(checkpoint, runner, convert)
    if found is None or found.kind != "embed":
        return found
    pooled = found.tokens in _OF_ONE_TOKEN or _includes_prompt(checkpoint.path)
    return replace(found, prompts=read_prompts(checkpoint.path, pooled=pooled))


def _pooling(checkpoint: Checkpoint, runner: Runner, convert: Convert) -> PoolingConfig | None:
    if is_encoder(checkpoint.config):
        return _of_encoder(checkpoint, runner, convert)
    if runner == "generate" or (runner == "auto" and convert == "none"):
        if convert not in ("auto", "none"):
            raise ConfigError(f"convert {convert} is for a pooling model; use --runner pooling")
        return None
    if runner == "pooling" and convert == "none":
        raise ConfigError(
            "convert none: no decoder of this engine is a pooling model by itself; use --convert "
            "embed or classify"
        )
    found = _of_modules(checkpoint, ("lasttoken",))
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


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is of a text encoder, which generates nothing."""
    names = architectures_of(config)
    return isinstance(names, Sequence) and len(names) == 1 and str(names[0]) in ENCODERS


def _of_encoder(checkpoint: Checkpoint, runner: Runner, convert: Convert) -> PoolingConfig:
    """Return an encoder's pooling: its head of labels decides the kind."""
    config = text_part(checkpoint.config)
    name = texts(config, "architectures")[0]
    encoder = ENCODERS[name].family.encoder
    if runner == "generate":
        raise ConfigError(
            f"--runner generate: {name} is an encoder, which generates nothing; leave the option "
            "out, or give another model"
        )
    assert encoder is not None
    kind: PoolingKind = "embed" if encoder(config).head is None else "classify"
    if convert not in ("auto", "none", kind):
        raise ConfigError(f"convert {convert}: {name} is a model to {kind}; leave the option out")
    if kind == "classify":
        return PoolingConfig(kind=kind, label=_label_score(checkpoint), max_tokens=None)
    found = _of_modules(checkpoint, tuple(_TOKENS)) or PoolingConfig(kind=kind)
    if found.kind != kind:
        raise ModelError(
            f"{checkpoint.path / MODULES_FILE}: scores by tokens that an encoder does not give; "
            "use the files that came with the weights"
        )
    if not (checkpoint.path / MODULES_FILE).is_file():
        found = replace(found, tokens="mean")  # as sentence-transformers does
    return replace(found, max_tokens=_longest_text(checkpoint.path))


def _label_score(checkpoint: Checkpoint) -> LabelScore:
    """Return how a head's number becomes a score: by the activation that config.json names for
    sentence-transformers, else as a probability."""
    config, place = checkpoint.config, checkpoint.config_place
    labels = label_count(config)
    if labels != 1:
        raise ModelError(f"{place}: has {labels} labels; scores are of models with one label")
    section = config.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    found = _LABEL_SCORES.get(str(named).rpartition(".")[2])
    if found is None:
        raise ModelError(
            f"{place}: scores go through {named!r}, which is not computed here; "
            f"{' and '.join(_LABEL_SCORES)} are"
        )
    return found


def _longest_text(folder: Path) -> int | None:
    """Return the longest text of the model's training in tokens, None if no file says."""
    for file in sorted(folder.glob(_LENGTH_FILES)):
        most = read_json(file).get("max_seq_length")
        if most is not None:
            if not FIELDS["max_position_embeddings"].takes(most):
                raise ModelError(f"{file}: max_seq_length is {most!r}; it must be a whole number")
            return int(most)
    return None


def _of_modules(checkpoint: Checkpoint, allowed: Sequence[str]) -> PoolingConfig | None:
    """Read the pooling from sentence-transformers' files; return None if the checkpoint has
    none. allowed: rules of pooling that the model can have."""
    file = checkpoint.path / MODULES_FILE
    if not file.is_file():
        return None
    (first, _), *modules = _modules(file) or [("", file)]
    if first != _TRANSFORMER:
        raise ModelError(f"{file}: must begin with a Transformer; download the folder again")
    rest = [name for name, _ in modules]
    if rest == [_LOGIT_SCORE]:
        return _logit_score(modules[0][1])
    body = rest[:-1] if rest[-1:] == [_NORMALIZE] else rest
    if (body and (body[0] != _POOLING or set(body[1:]) - {_DENSE})) or (rest and not body):
        raise ModelError(
            f"{file}: the modules {', '.join(rest)} behind the Transformer are not computed here; "
            "Pooling, Dense, Normalize and LogitScore are"
        )
    tokens = _pooled_tokens(modules[0][1], allowed) if body else "lasttoken"
    return PoolingConfig(
        kind="embed",
        normalized=not rest or rest != body,
        tokens=tokens,
        dense=tuple(_dense(folder) for name, folder in modules if name == _DENSE),
    )


def _modules(file: Path) -> list[tuple[str, Path]]:
    """Return the last words of modules' types with their folders, in order."""
    try:
        rows = read_json_file(file)
        return [
            (str(row["type"]).rpartition(".")[2], file.parent / Path(str(row["path"])).name)
            for row in rows
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{file}: is no list of sentence-transformers' modules ({error}); download it again"
        ) from error


def _pooled_tokens(folder: Path, allowed: Sequence[str]) -> TokenPooling:
    settings = read_json(folder / "config.json")
    named = settings.get("pooling_mode")
    modes = {named} if isinstance(named, str) else {
        name.removeprefix("pooling_mode_")
        for name, on in settings.items()
        if name.startswith("pooling_mode_") and on is True
    }  # fmt: skip
    if len(modes) != 1 or not modes <= set(allowed):
        computed = (
            "only the last token (pooling_mode_lasttoken) of a decoder is pooled here"
            if tuple(allowed) == ("lasttoken",)
            else f"one of {', '.join(dict.fromkeys(_TOKENS.values()))} is pooled here"
        )
        raise ModelError(
            f"{folder / 'config.json'}: pools by {', '.join(sorted(modes)) or 'nothing'}; "
            f"{computed}"
        )
    return _TOKENS[modes.pop()]


def _includes_prompt(folder: Path) -> bool:
    """Return whether the tokens of a prompt are pooled with those of the input."""
    file = folder / MODULES_FILE
    modules = _modules(file) if file.is_file() else []
    return not any(
        read_json(of / "config.json").get("include_prompt") is False
        for name, of in modules
        if name == _POOLING
    )


def _dense(folder: Path) -> DenseLayer:
    """Read the settings of a matrix behind the pooling."""
    place = folder / "config.json"
    settings = read_json(place)
    named = str(settings.get("activation_function", "Tanh"))
    activation = _ACTIVATIONS.get(named.rpartition(".")[2])
    if activation is None:
        raise ModelError(
            f"{place}: the activation {named!r} is not computed here; {', '.join(_ACTIVATIONS)} are"
        )
    sizes = [settings.get(key) for key in ("in_features", "out_features")]
    if not all(FIELDS["hidden_size"].takes(size) for size in sizes):
        raise ModelError(
            f"{place}: in_features and out_features are {sizes[0]!r} and {sizes[1]!r}; they must "
            "be whole numbers from 1"
        )
    inputs, outputs = (int(size) for size in sizes if size is not None)
    bias = settings.get("bias") is not False
    file = folder / "model.safetensors"
    return DenseLayer(file=file, inputs=inputs, outputs=outputs, bias=bias, activation=activation)


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
