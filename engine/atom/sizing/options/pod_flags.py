"""Decide the engine's flags that a pod's spec may give beside its fields, and reject the others.

The fields of an AtomDeployment that set options are declared with the options (`CrdField`). This
table has all other flags of the server. A flag without an entry fails a test, so that a new flag is
decided when it is added. Standard library only; the operator refuses and plans by this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from atom.sizing.options.table import OPTIONS


class PodUse(Enum):
    """The use of a flag among the further arguments of a pod."""

    FIELD = "a field of the AtomDeployment, or the operator, sets it"
    PLANNED = "the capacity plan reads its value"
    HARMLESS = "neither the plan nor the pod depends on it"
    VOLUME = "it needs a volume of the pod, and a single pod"
    REFUSED = "it would break the pod, or what the operator knows of it"


@dataclass(frozen=True, slots=True)
class PodFlag:
    """The use of one flag. note: of FIELD, the field's path below spec, empty if the operator sets
    the flag; of REFUSED, why and the remedy; else empty."""

    flag: str
    use: PodUse
    note: str = ""


def _rows(use: PodUse, flags: str, note: str = "") -> Iterator[PodFlag]:
    for flag in flags.split():
        yield PodFlag(flag, use, note)


_ONE_MODEL = "a pod serves one model, which the plan counts; create an AtomDeployment for each"
_PLAIN_HTTP = (
    "probes, the Service and the operator reach pods by HTTP; let spec.gateway or a proxy end TLS"
)
_DECLARED = (
    # The server's flags that fields set, or that the operator itself decides.
    *_rows(PodUse.FIELD, "--drain-seconds --shutdown-timeout", "rollout.drainSeconds"),
    *_rows(PodUse.FIELD, "--handover-url", "rollout.handover"),
    *_rows(PodUse.FIELD, "--worker-urls", "frontend"),
    *_rows(
        PodUse.FIELD, "--prefill-least-tokens", "disaggregation.decide.minNonCachedTokens"
    ),
    *_rows(PodUse.FIELD, "--lora-modules-file", "adapters"),
    *_rows(PodUse.FIELD, "--api-key", "engine.apiKeySecretRef"),
    *_rows(PodUse.FIELD, "--device", "accelerator.type"),
    *_rows(
        PodUse.FIELD,
        "--host --port --server-port --startup-budget-seconds --handover-secret-file",
    ),
    *_rows(
        PodUse.PLANNED,
        "--quantization --online-quant-config --dtype --language-model-only "
        "--enable-sleep-mode --backend --op-backend --expert-exchange --enable-eplb --eplb-config",
    ),
    *_rows(
        PodUse.HARMLESS,
        # The model and its requests
        "--tokenizer --generation-config --override-generation-config --runner --convert --seed "
        "--load-dummy --load-format --download-dir --chat-template --default-chat-template-kwargs "
        "--tool-call-parser --reasoning-parser --enable-auto-tool-choice "
        # Scheduling, tiers and ranks
        "--long-prefill-token-threshold --scheduler-delay-factor --max-step-seconds "
        "--max-waiting-requests --fairness --fairness-weights --fairness-header "
        "--kv-transfer-timeout --kv-transfer-max-held-fraction --kv-events-config "
        "--kv-offloading-backend --kv-offload-min-tokens --kv-offload-policy --kv-offload-write "
        "--sleep-queue --torch-profiler-dir --enforce-eager --self-check "
        "--data-parallel-routing --stall-seconds "
        # The server
        "--api-server-count --request-timeout-seconds --reader-timeout-seconds --body-memory-mib "
        "--responses-store-mib --timeout-keep-alive --verbose --disable-access-log --log-level "
        "--api-key-file --admin-api-key-file --share-prefix-cache --allowed-lora-paths "
        "--allowed-weights-paths --allowed-media-domains --allowed-local-media-path "
        "--allowed-origins --root-path --disable-console --page-mcp-hosts "
        "--enable-tokenizer-info-endpoint --otlp-traces-endpoint --batch-storage-mib "
        "--batch-file-mib --batch-max-lines "
        "--batch-max-files --batch-concurrency",
    ),
    *_rows(PodUse.VOLUME, "--batch-dir"),
    *_rows(
        PodUse.REFUSED,
        "--config",
        "neither the plan nor the checks of a spec read a file of the pod; set the fields of spec, "
        "and write its other flags here",
    ),
    *_rows(
        PodUse.REFUSED,
        "--num-kv-blocks",
        "the plan counts the blocks that memory allows; use spec.engine.gpuMemoryUtilization",
    ),
    *_rows(
        PodUse.REFUSED,
        "--kv-transfer-config",
        "the role of a pod, or its host memory, would differ from the plan; leave it "
        "out, and set spec.disaggregation, or spec.cache.kv.hostMemory for a tier",
    ),
    *_rows(
        PodUse.REFUSED,
        "--admin-api-key",
        "all who read the spec would see the key; use --admin-api-key-file with a Secret that "
        "spec.template mounts",
    ),
    *_rows(
        PodUse.REFUSED,
        "--models --swap-wait-seconds --swap-drain-seconds --swap-least-awake-seconds",
        _ONE_MODEL,
    ),
    *_rows(
        PodUse.REFUSED,
        "--ssl-certfile --ssl-keyfile --ssl-keyfile-password --ssl-ca-certs --ssl-cert-reqs "
        "--ssl-ciphers",
        _PLAIN_HTTP,
    ),
    *_rows(
        PodUse.REFUSED,
        "--record --record-mib",
        "the container's file system is read-only, and a pod's request for disk has no room for "
        "it; record a server outside the cluster",
    ),
    *_rows(PodUse.REFUSED, "--help", "the engine would print its page and end; leave it out"),
)  # fmt: skip
_SHORT: Mapping[str, str] = MappingProxyType({"-v": "--verbose", "-h": "--help"})


def _of_options() -> Iterator[PodFlag]:
    for each in OPTIONS:
        if each.crd is not None:
            for spelling in each.spellings:
                yield PodFlag(spelling, PodUse.FIELD, each.crd.path or "")


POD_FLAGS: Mapping[str, PodFlag] = MappingProxyType(
    {row.flag: row for row in (*_DECLARED, *_of_options())}
)


def pod_flag(flag: str) -> PodFlag | None:
    """Return the entry of a flag in this engine's own spelling, also of a switch's --no-… form;
    None for an unknown flag."""
    flag = _SHORT.get(flag, flag)
    return POD_FLAGS.get(flag) or POD_FLAGS.get(f"--{flag.removeprefix('--no-')}")
