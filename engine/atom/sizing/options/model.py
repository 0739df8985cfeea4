"""Options of the model: its files, and the form in which it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from atom.sizing.options.flag_values import (
    DTYPES,
    context_length,
    dtype,
    is_dummy,
    json_object,
)
from atom.sizing.options.option import Companion, CrdField, Flag, Range, option, required
from atom.sizing.quantization.online import ONLINE_NAMES

Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]

_CONFIG_FILE = Companion(
    "--config",
    "YAML file with flags, as flag: value; flags of the command line take precedence",
    metavar="FILE",
)
_DOWNLOAD_FOLDER = Companion(
    "--download-dir",
    "where models of the hub are kept (default: the hub's cache, $HF_HUB_CACHE)",
    metavar="FOLDER",
)
_LOAD_FORMAT = Companion(
    "--load-format",
    "dummy is --load-dummy, auto reads safetensors or a GGUF file",
    metavar="{auto,dummy}",
    read=is_dummy,
    dest="load_dummy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """The files of the model, and its name in the API."""

    model: str = required(
        "checkpoint folder, GGUF file, hub id such as Qwen/Qwen3-0.6B, or "
        "s3://bucket/prefix; also without the flag's name",
        flag=Flag(then=(_CONFIG_FILE,)),
        crd=CrdField("model.source"),
    )
    revision: str | None = option(
        None,
        "branch, tag or commit of a hub id",
        flag=Flag(then=(_DOWNLOAD_FOLDER,)),
        crd=CrdField("model.revision"),
    )
    tokenizer: str | None = option(
        None,
        "folder or hub id of another tokenizer, with its chat template (default: the model's)",
        flag=Flag(metavar="FOLDER"),
    )
    generation_config: str = option(
        "auto",
        "whose generation_config.json gives sampling defaults: auto, the model's; vllm, none; "
        "or a folder's",
        flag=Flag(metavar="{auto,vllm,FOLDER}"),
    )
    override_generation_config: Mapping[str, Any] | None = option(
        None,
        'sampling defaults over those, such as {"temperature": 0.6, "top_p": 0.95}',
        flag=Flag(metavar="JSON", read=json_object),
    )
    served_model_name: str | None = option(
        None,
        "names in the API; answers have the first (default: that of --model)",
        flag=Flag(metavar="NAME", many="words"),
        crd=CrdField("model.servedName"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The form of the model: its results, its number formats, its longest context."""

    runner: Runner = option(
        "auto",
        "generate: tokens; pooling: embeddings or scores; auto: pooling if the model is an encoder "
        "or has sentence-transformers' modules.json",
    )
    convert: Convert = option(
        "auto",
        "of a pooling model: embed, hidden states; classify, the share of yes between yes and no "
        "(rerankers), or an encoder's head; auto: as the model's files say, else embed",
    )
    dtype: str = option(
        "auto",
        "type of weights and activations",
        flag=Flag(metavar=f"{{{','.join(DTYPES)}}}", read=dtype),
    )
    quantization: str | None = option(
        None,
        "store a plain checkpoint's matrices so as they are loaded: fp8 in blocks of 128 x "
        "128, int8 by output, mxfp4 in groups of 32; or the method of a quantised checkpoint "
        "(default: as the checkpoint has them)",
        flag=Flag(metavar="METHOD"),
    )
    online_quant_config: Mapping[str, Any] | None = option(
        None,
        "the same by layer: global_quant_config names the format of all matrices, "
        "layer_quant_config others by glob patterns of module names, exclude_layer what stays "
        f"plain; formats: {', '.join(ONLINE_NAMES)}",
        flag=Flag(metavar="JSON", read=json_object),
    )
    max_model_len: int | None = option(
        None,
        "most tokens of prompt and answer together, such as 32768 or 32k (default: auto, the "
        "model's own)",
        flag=Flag(metavar="N", read=context_length),
        within=Range(1),
        crd=CrdField(
            "engine.maxModelLen",
            "Longest context in tokens; default: the model's own maximum.",
            most=10_485_760,
            stated=True,
        ),
    )
    load_dummy: bool = option(
        False,
        "random weights, for benchmarks: needs config.json only",
        flag=Flag(then=(_LOAD_FORMAT,)),
    )
    seed: int = option(0, "seed of requests that bring none")
