"""Pooling of a model: the result that it returns for a prompt, from its checkpoint and the options.

Decoders are pooled at their last token: the state after the last norm for an embedding (as in
Qwen3-Embedding), or the logits of two tokens for a score (as in Qwen3-Reranker). Encoders are
always pooled: by their first token, the mean of all or another rule for an embedding, or through
their head of labels for a score. sentence-transformers' files (modules.json and the folders that it
names) select the pooling; without these files the options do. Any other module in the files, and
any key that is not computed (`sentence_files.KEYS`), is refused by name. Torch-free; called by
`build_config` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from atom.bounded_input.bounded_json import read_json_file
from atom.checkpoint import Checkpoint
from atom.errors import ConfigError, ModelError
from atom.pooling_config.embedding_prompts import PROMPTS_FILE, EmbeddingPrompts, read_prompts
from atom.pooling_config.sentence_files import Part, read_settings, transformer_settings
from atom.sizing.config_fields import texts
from atom.sizing.families.encoder_rows import ENCODERS
from atom.sizing.families.encoders import label_count
from atom.sizing.options.model import Convert, Runner
from atom.sizing.text_part import architectures_of, text_part

PoolingKind = Literal["embed", "classify"]
TokenPooling = Literal["lasttoken", "cls", "mean", "max", "mean_sqrt_len_tokens"]
LabelScore = Literal["logit", "sigmoid"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

MODULES_FILE = "modules.json"
RERANKER_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_TYPES = "sentence_transformers."  # other modules are code of the model's author
_SETTINGS = "config.json"
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
      length 1; `similarity`: of two embeddings.
    - `max_tokens`: of a text, as the model's files say, None if they do not; `lowercases`: texts
      are lowercased before they are tokenized.
    - `token_ids`, `token_texts`: for a decoder's score, the tokens of its two answers, no and yes,
      by id if the checkpoint has ids, else by text.
    - `prompts`: in front of the inputs of an embedding.
    - `score`: the conversion of a head's number, or of the difference of two tokens' logits.
    """

    kind: PoolingKind
    normalized: bool = True
    tokens: TokenPooling = "lasttoken"
    dense: tuple[DenseLayer, ...] = ()
    max_tokens: int | None = None
    token_ids: tuple[int, int] | None = None
    token_texts: tuple[str, str] = _YES_NO
    score: LabelScore = "sigmoid"
    similarity: Similarity = "cosine"
    lowercases: bool = False
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
    found, folder = _pooling(checkpoint, runner, convert), checkpoint.path
    if found is None:
        return None
    said = read_settings(folder / PROMPTS_FILE, Part.MODEL)
    if found.kind == "embed" or (folder / MODULES_FILE).is_file():
        settings = transformer_settings(folder)
        longest = settings.get("max_seq_length")
        found = replace(
            found,
            max_tokens=None if longest is None else int(longest),
            lowercases=settings.get("do_lower_case") is True,
        )
    if found.kind == "embed":
        pooled = found.tokens in _OF_ONE_TOKEN or _includes_prompt(folder)
        return replace(
            found,
            prompts=read_prompts(folder, pooled=pooled),
            similarity=said.get("similarity_fn_name") or "cosine",
        )
    prompts = read_prompts(folder, pooled=True)
    if prompts.text(None, None) not in ("", *_default_prompts(checkpoint)):
        raise ModelError(
            f"{folder / PROMPTS_FILE}: the default prompt {prompts.default} is not put before "
            "pairs of texts here; remove default_prompt_name, and send the prompt with each request"
        )
    return replace(found, score=_score(checkpoint, said.get("activation_fn")))


def _default_prompts(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the prompts that pairs of texts have here without a choice."""
    return () if is_encoder(checkpoint.config) else (RERANKER_INSTRUCTION,)


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
        _check_labels(checkpoint)
        return PoolingConfig(kind=kind)
    found = _of_modules(checkpoint, tuple(_TOKENS)) or PoolingConfig(kind=kind)
    if found.kind != kind:
        raise ModelError(
            f"{checkpoint.path / MODULES_FILE}: scores by tokens that an encoder does not give; "
            "use the files that came with the weights"
        )
    if not (checkpoint.path / MODULES_FILE).is_file():
        found = replace(found, tokens="mean")  # as sentence-transformers does
    return found


def _check_labels(checkpoint: Checkpoint) -> None:
    """Check that an encoder's head is all that its files compute, and has one label."""
    labels, file = label_count(checkpoint.config), checkpoint.path / MODULES_FILE
    if labels != 1:
        raise ModelError(
            f"{checkpoint.config_place}: has {labels} labels; scores are of models with one label"
        )
    behind = [part.value for part, _ in _modules(file)[1:]] if file.is_file() else []
    if behind:
        raise ModelError(
            f"{file}: the modules {', '.join(behind)} behind a head of labels are not computed "
            "here; remove them for scores, or correct architectures in config.json for embeddings"
        )


def _score(checkpoint: Checkpoint, named: str | None) -> LabelScore:
    """Return how a number becomes a score: by the activation that `named` or config.json names for
    sentence-transformers, else as a probability."""
    config, place = checkpoint.config, checkpoint.config_place
    section = config.get("sentence_transformers")
    if named is not None:
        place = checkpoint.path / PROMPTS_FILE
    elif isinstance(section, Mapping):
        named = section.get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    found = _LABEL_SCORES.get(str(named).rpartition(".")[2])
    if found is None:
        raise ModelError(
            f"{place}: scores go through {named!r}, which is not computed here; "
            f"{' and '.join(_LABEL_SCORES)} are"
        )
    return found


def _of_modules(checkpoint: Checkpoint, allowed: Sequence[str]) -> PoolingConfig | None:
    """Read the pooling from sentence-transformers' files; return None if the checkpoint has
    none. allowed: rules of pooling that the model can have."""
    file = checkpoint.path / MODULES_FILE
    if not file.is_file():
        return None
    (first, path), *modules = _modules(file) or [(Part.MODEL, file)]
    if first is not Part.TRANSFORMER or path != checkpoint.path:
        raise ModelError(
            f"{file}: must begin with a Transformer, whose path is empty; download the folder again"
        )
    rest = [part for part, _ in modules]
    if rest == [Part.LOGIT_SCORE]:
        return _logit_score(modules[0][1])
    body = rest[:-1] if rest[-1:] == [Part.NORMALIZE] else rest
    if (body and (body[0] is not Part.POOLING or set(body[1:]) - {Part.DENSE})) or (
        rest and not body
    ):
        raise ModelError(
            f"{file}: the modules {', '.join(each.value for each in rest)} behind the Transformer "
            "are not computed here; Pooling, Dense, Normalize and LogitScore are"
        )
    if body != rest:
        read_settings(modules[-1][1] / _SETTINGS, Part.NORMALIZE)
    tokens = _pooled_tokens(modules[0][1], allowed) if body else "lasttoken"
    return PoolingConfig(
        kind="embed",
        normalized=not rest or rest != body,
        tokens=tokens,
        dense=tuple(_dense(folder) for part, folder in modules if part is Part.DENSE),
    )


def _modules(file: Path) -> list[tuple[Part, Path]]:
    """Return the modules with their folders, in order."""
    try:
        rows = [(str(row["type"]), str(row["path"])) for row in read_json_file(file)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{file}: is no list of sentence-transformers' modules ({error}); download it again"
        ) from error
    known = {part.value: part for part in Part if part is not Part.MODEL}
    found: list[tuple[Part, Path]] = []
    for kind, path in rows:
        part = known.get(kind.rpartition(".")[2]) if kind.startswith(_TYPES) else None
        if part is None:
            raise ModelError(
                f"{file}: the module {kind[:128]} is not computed here; {', '.join(known)} of "
                "sentence_transformers are"
            )
        if path != Path(path).name or path == "..":
            raise ModelError(f"{file}: the path {path[:128]!r} must be a folder beside this file")
        found.append((part, file.parent / path))
    return found


def _pooled_tokens(folder: Path, allowed: Sequence[str]) -> TokenPooling:
    settings = read_settings(folder / _SETTINGS, Part.POOLING)
    named = settings.get("pooling_mode")
    if named is None:
        modes = {
            name.removeprefix("pooling_mode_")
            for name, on in settings.items()
            if name.startswith("pooling_mode_") and on is True
        }
    else:
        modes = {named} if isinstance(named, str) else set(named)
    if len(modes) != 1 or not modes <= set(allowed):
        computed = (
            "only the last token (pooling_mode_lasttoken) of a decoder is pooled here"
            if tuple(allowed) == ("lasttoken",)
            else f"one of {', '.join(dict.fromkeys(_TOKENS.values()))} is pooled here"
        )
        raise ModelError(
            f"{folder / _SETTINGS}: pools by {', '.join(sorted(modes)) or 'nothing'}; {computed}"
        )
    return _TOKENS[modes.pop()]


def _includes_prompt(folder: Path) -> bool:
    """Return whether the tokens of a prompt are pooled with those of the input."""
    file = folder / MODULES_FILE
    modules = _modules(file) if file.is_file() else []
    return all(
        read_settings(of / _SETTINGS, Part.POOLING).get("include_prompt", True)
        for part, of in modules
        if part is Part.POOLING
    )


def _dense(folder: Path) -> DenseLayer:
    """Read the settings of a matrix behind the pooling."""
    place = folder / _SETTINGS
    settings = read_settings(place, Part.DENSE)
    named = str(settings.get("activation_function", "Tanh"))
    activation = _ACTIVATIONS.get(named.rpartition(".")[2])
    if activation is None:
        raise ModelError(
            f"{place}: the activation {named!r} is not computed here; {', '.join(_ACTIVATIONS)} are"
        )
    inputs, outputs = (settings.get(key) for key in ("in_features", "out_features"))
    if inputs is None or outputs is None:
        raise ModelError(f"{place}: in_features and out_features are required; download it again")
    return DenseLayer(
        file=folder / "model.safetensors",
        inputs=int(inputs),
        outputs=int(outputs),
        bias=settings.get("bias", True),
        activation=activation,
    )


def _logit_score(folder: Path) -> PoolingConfig:
    settings = read_settings(folder / _SETTINGS, Part.LOGIT_SCORE)
    no, yes = settings.get("false_token_id"), settings.get("true_token_id")
    if no is None or yes is None:
        raise ModelError(
            f"{folder / _SETTINGS}: scores by one token; scores of two, true_token_id and "
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
