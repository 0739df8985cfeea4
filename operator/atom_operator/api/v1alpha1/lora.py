"""The parts of a spec about LoRA adapters: which there are, and how many pods have room for."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.common import ApiModel, cel
from atom_operator.api.v1alpha1.option_field import default_of, option_field

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
SOURCE_PATTERN = (
    rf"^(hf://{_NAME}/{_NAME}|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/:\s]+(/[^/:\s]+)*"
    r"|path://(/[^/:\s]+)+)$"
)
_BUCKET = r"s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[^/:\s]+)*"
_IMAGE = (
    r"oci://[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[a-f0-9]{64})?"
)
MODEL_PATTERN = f"{SOURCE_PATTERN[:-2]}|{_BUCKET}|{_IMAGE})$"
MODEL_FORMS = (
    "must be hf://ORG/NAME, pvc://CLAIM/PATH, path:///DIRECTORY/IN/THE/IMAGE, s3://BUCKET/PREFIX or"
    " oci://REGISTRY/REPOSITORY:TAG"
)
# A name is part of a label's key, too.
ADAPTER_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"

_MAX_LORAS = default_of("max_loras")


class LoraSpec(ApiModel):
    """Room for LoRA adapters, which spec.adapters names. A change of it replaces the pods."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.maxCpuLoras)"
                f" || self.maxCpuLoras >= (has(self.maxLoras) ? self.maxLoras : {_MAX_LORAS})",
                f"maxCpuLoras must be at least maxLoras ({_MAX_LORAS} where that is not set): an"
                " adapter on the device is in the host's memory too",
            )
        )
    )

    max_loras: int | None = option_field("max_loras")
    max_lora_rank: int | None = option_field("max_lora_rank")
    max_cpu_loras: int | None = option_field("max_cpu_loras")
    experts: bool | None = option_field("lora_experts")
    claims: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=253)]],
            Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
        ]
        | None
    ) = None
    """PersistentVolumeClaims in the same namespace that pods mount read-only for pvc:// adapters,
    beside that of the model."""


class AdapterSpec(ApiModel):
    """A LoRA adapter of PEFT that requests may name as their model."""

    name: Annotated[str, Field(max_length=63, pattern=ADAPTER_PATTERN)]
    """Name in the HTTP API."""
    source: Annotated[str, Field(max_length=512, pattern=SOURCE_PATTERN)]
    """Location of the adapter's folder: hf://Org/Name on the Hugging Face hub, which each pod
    downloads, pvc://claim/path on a claim that pods mount (the model's, or one of
    engine.lora.claims), or path:///dir inside the image. To reload changed files, use a new
    path."""
