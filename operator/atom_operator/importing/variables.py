"""Environment variables of a container, to fields of a spec and to spec.engine.env. Pure.

Variables of other engines and of NVIDIA's libraries have no effect here, and each is reported.
Names of NIM's variables: docs.nvidia.com/nim/large-language-models, configuration; those of KServe:
docs/samples/llmisvc of kserve/kserve.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.importing.engine_line import LineContext, line_results
from atom_operator.importing.results import Result, Setting, changed, left, unneeded
from atom_operator.importing.rules import At
from atom_operator.importing.secret_values import is_secret_name, is_secret_text

_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_BUCKET_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_BUCKET_FIELDS = {
    "AWS_ENDPOINT_URL": "model.s3.endpoint",
    "AWS_ENDPOINT_URL_S3": "model.s3.endpoint",
    "AWS_REGION": "model.s3.region",
    "AWS_DEFAULT_REGION": "model.s3.region",
}
_LINES = ("VLLM_ADDITIONAL_ARGS", "NIM_PASSTHROUGH_ARGS")
_FLAGS = {
    "VLLM_LOGGING_LEVEL": "--log-level",
    "VLLM_API_SERVER_COUNT": "--api-server-count",
    "NIM_LOG_LEVEL": "--log-level",
    "NIM_MODEL_NAME": "--model",
    "NIM_SERVED_MODEL_NAME": "--served-model-name",
    "NIM_MAX_MODEL_LEN": "--max-model-len",
    "NIM_TENSOR_PARALLEL_SIZE": "--tensor-parallel-size",
    "NIM_KVCACHE_PERCENT": "--gpu-memory-utilization",
    "NIM_MAX_GPU_LORAS": "--max-loras",
    "NIM_MAX_CPU_LORAS": "--max-cpu-loras",
    "NIM_MAX_LORA_RANK": "--max-lora-rank",
}
_OTHER_ENGINES = ("VLLM_", "SGLANG_", "SGL_", "NIM_", "LMCACHE_", "KSERVE_", "TRTLLM_")
_NVIDIA = ("CUDA_", "NVIDIA_", "NCCL_", "NVSHMEM_", "UCX_", "UCC_", "NGC_", "FLASHINFER_")
_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME")


def variable_list(at: At, context: LineContext) -> Iterator[Result]:
    """Translate `env` of a container: a list of name with value or valueFrom."""
    for item in at.items():
        name = item.object().get("name")
        if not isinstance(name, str) or not name:
            raise item.wrong("an object with a name")
        where = f"{at.where}[{name}]"
        source = item.object().get("valueFrom")
        if source is not None:
            yield from _referenced(name, At(where, source))
        elif item.object().get("value") is not None:
            yield from variable(name, At(where, item.object()["value"]), context)


def variable_map(at: At, context: LineContext) -> Iterator[Result]:
    """Translate variables that are an object of names and values."""
    for name, value in at.object().items():
        if value is not None:
            yield from variable(str(name), At(f"{at.where}[{name}]", value), context)


def variable(name: str, at: At, context: LineContext) -> Iterator[Result]:
    """Translate one variable with a literal value."""
    text = at.text()
    if name in _LINES:
        yield from _line(at, context)
    elif name in _HUB_TOKENS:
        yield hub_token(at.where)
    elif name in _FLAGS:
        yield from line_results([At(at.where, _FLAGS[name]), At(at.where, text)], context)
    elif is_secret_name(name) or is_secret_text(text):
        yield left(
            at.where,
            "the value may be secret and is not printed; put it into a Secret and name that in "
            "spec.engine.env by valueFrom.secretKeyRef",
        )
    elif name in _BUCKET_FIELDS:
        yield Setting(_BUCKET_FIELDS[name], text, at.where)
    else:
        yield from _plain(name, {"value": text}, at.where)


def hub_token(where: str) -> Setting:
    """Name a Secret for a token that the input has as a literal."""
    note = "the token is not printed; kubectl create secret generic hf-token --from-literal=token=…"
    return Setting("model.tokenSecretRef", {"name": "hf-token"}, where, note)


def _referenced(name: str, at: At) -> Iterator[Result]:
    source = at.object()
    secret = source.get("secretKeyRef")
    chosen: dict[str, Any] = {}
    if isinstance(secret, Mapping):
        chosen = {key: secret[key] for key in ("name", "key") if secret.get(key)}
    if chosen and name in _HUB_TOKENS:
        yield Setting("model.tokenSecretRef", chosen, at.where)
    elif chosen and name == "VLLM_API_KEY":
        yield Setting("engine.apiKeySecretRef", chosen, at.where)
    elif chosen and name in _BUCKET_KEYS:
        yield Setting("model.s3.secretRef", {"name": chosen.get("name")}, at.where)
        if chosen.get("key") != name:
            yield changed(at.where, f"the Secret needs the key {name}; add it")
    else:
        yield from _plain(name, {"valueFrom": source}, at.where)


def _plain(name: str, value: Mapping[str, Any], where: str) -> Iterator[Result]:
    if name.startswith(_OTHER_ENGINES):
        yield left(where, "a variable of another engine has no effect here; leave it out")
    elif name.startswith(_NVIDIA):
        yield left(
            where,
            "a variable of NVIDIA's libraries has no effect on AMD GPUs; spec.engine.env may set "
            "the one of ROCm's library (RCCL reads NCCL_*)",
        )
    elif name in _FOLDERS:
        yield unneeded(where, "the operator sets the folders of caches; spec.cache keeps them")
    else:
        yield Setting("engine.env", [{"name": name, **value}], where)


def _line(at: At, context: LineContext) -> Iterator[Result]:
    try:
        words = shlex.split(at.text())
    except ValueError:
        yield left(at.where, "a quotation of the line has no end; correct it")
        return
    yield from line_results([At(at.where, word) for word in words], context)
