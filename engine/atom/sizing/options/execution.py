"""Options of the device: sleep mode, and how steps are computed."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.options.option import CrdField, Flag, Range, option

DEVICES = ("auto", "cpu", "cuda", "rocm", "gpu")
BACKENDS = ("auto", "triton", "native_cpu", "torch_cpu", "torch_ref")

_REPRODUCIBLE_VARIABLE = "VLLM_BATCH_INVARIANT"  # vLLM's own switch of the same
_PROFILER_VARIABLE = "ATOM_TORCH_PROFILER_DIR"
_EAGER_VARIABLE = "ATOM_ENFORCE_EAGER"
SELF_CHECKS = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepOptions:
    """Settings of sleep mode, which lends the device to other processes. holds_requests: new
    requests wait for the engine to wake up; else they are refused. idle_seconds: time without a
    request after which the engine sleeps until the next request; None for never."""

    enabled: bool = option(
        False,
        "let POST /sleep give the device's memory back until POST /wake_up",
        keyword="enable_sleep_mode",
    )
    holds_requests: bool = option(
        False,
        "hold requests that come while the server sleeps; else they are refused with 503",
        keyword="sleep_queue",
    )
    idle_seconds: float | None = option(
        None,
        "sleep at level 1 after so long without a request, until one comes; it is held and "
        "wakes the server up (default: never)",
        keyword="sleep_idle_seconds",
        flag=Flag(metavar="SECONDS"),
        within=Range(0, above=True),
        crd=CrdField("autoscaling.idleSeconds"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """The device, and how it computes steps. op_backends: by the name of an operation.
    reproducible: a row's result never depends on the other rows of its step. torch_profiler_dir:
    the folder for traces of the running engine; None for none. enforce_eager: no graphs.
    self_check: when a start holds its kernels against the reference."""

    device: str = option(
        "auto",
        "device of the model; gpu: cuda or rocm, whichever is here",
        flag=Flag(choices=DEVICES),
    )
    backend: str = option("auto", "implementation of the ops", flag=Flag(choices=BACKENDS))
    op_backends: dict[str, str] = option(
        {},
        "another implementation for one op; may be given several times",
        flag=Flag("--op-backend", metavar="OP=NAME", many="append"),
    )
    reproducible: bool = option(
        False,
        "the same tokens and log-probabilities whatever else is served: kernels that compute "
        f"each row apart; what cannot hold is refused (also by ${_REPRODUCIBLE_VARIABLE}=1)",
        variable=_REPRODUCIBLE_VARIABLE,
        crd=CrdField(
            "engine.reproducible",
            "Return the same tokens and log-probabilities for a request, whatever other requests "
            "run. Options that prevent this, such as quantised models, adapters and "
            "parallelism.expert, are refused. Default: {default}.",
        ),
    )
    torch_profiler_dir: str | None = option(
        None,
        f"folder for traces of the running engine (default: ${_PROFILER_VARIABLE}, else none)",
        variable=_PROFILER_VARIABLE,
    )
    enforce_eager: bool = option(
        False,
        f"never record steps as device graphs (also by ${_EAGER_VARIABLE}=1)",
        variable=_EAGER_VARIABLE,
    )
    self_check: str = option(
        "auto",
        "compare the chosen kernels with the reference at the model's shapes before the server is "
        "ready (up to 10 s); auto: on a GPU, at the first start of a card, driver and version",
        flag=Flag(choices=SELF_CHECKS),
    )
