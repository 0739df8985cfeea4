"""Arguments that this version's engine would end at are told before a pod starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.builders_operator import plan


def warnings(*arguments: str, image: str | None = None, **changes: Any) -> tuple[str, ...]:
    engine = {"extraArgs": list(arguments), **({"image": image} if image else {})}
    return plan(**{**changes, "engine": {**engine, **changes.pop("engine", {})}}).spec.warnings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-lorass", "3"), "did you mean --max-loras?"),
        (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
        (("--seed", "many"), "--seed"),
        (("--log-level", "loud"), "invalid choice"),
        (("--pipeline-parallel-size", "2"), "--pipeline-parallel-size"),
        (("--timeout-keep-alive",), "expected one argument"),
    ],
)
def test_an_argument_that_ends_the_engine_is_a_warning(
    arguments: tuple[str, ...], words: str
) -> None:
    (warning,) = warnings(*arguments)
    assert warning.startswith("spec.engine.extraArgs: the engine of this version ends at once: ")
    assert words in warning
    assert "--help" not in warning


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--log-level", "debug"),
        ("--log_level=debug",),
        ("--timeout-keep-alive", "30", "--body-memory-mib=64"),
        ("--allowed-local-media-path", "/of/the/pod"),
    ],
)
def test_arguments_that_it_takes_are_no_warning(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert warnings(*arguments) == ()
    assert capsys.readouterr().out == ""


GPU: dict[str, Any] = {"accelerator": {"type": "amd", "product": "MI300X"}}
TWO_NODES = {**GPU, "parallelism": {"nodes": 2, "tensor": 2}}


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        (("--enable_sleep_mode",), TWO_NODES, "over several nodes does not sleep"),
        (("--sleep-queue",), {}, "give --enable-sleep-mode too"),
        (("--eplb-config", "{}"), {}, "is for --enable-eplb"),
        (("--kv-events-config", "{"), {}, "--kv-events-config"),
    ],
)
def test_an_argument_that_ends_the_engine_beside_the_fields_is_a_warning(
    arguments: tuple[str, ...], changes: dict[str, Any], words: str
) -> None:
    (warning,) = warnings(*arguments, **changes)
    assert words in warning


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (("--max-step-seconds", "0.2"), TWO_NODES),
        (("--sleep-queue",), {"autoscaling": {"maxReplicas": 1, "idle": "Sleep"}}),
        (("--enable-sleep-mode",), {**GPU, "parallelism": {"data": 2}}),
        (("--fairness-weights", "/etc/weights.json"), {}),
    ],
)
def test_arguments_that_go_with_the_fields_are_no_warning(
    arguments: tuple[str, ...], changes: dict[str, Any]
) -> None:
    assert warnings(*arguments, **changes) == ()


def test_an_image_of_its_own_may_have_other_flags() -> None:
    assert warnings("--no-such-flag", image="acme/engine:2") == ()
