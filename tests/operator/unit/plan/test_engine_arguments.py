"""Arguments that this version's engine would end at are told before a pod starts."""

from __future__ import annotations

import pytest

from atom_operator.validation.engine_arguments import argument_warnings
from atom_operator.validation.parsing import parse_spec
from tests.support.operator.builders_operator import atom_deployment


def warnings(*arguments: str, image: str | None = None) -> tuple[str, ...]:
    engine = {"extraArgs": list(arguments), **({"image": image} if image else {})}
    spec = parse_spec(atom_deployment(engine=engine)["spec"])
    assert not isinstance(spec, tuple)
    return argument_warnings(spec)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-lorass", "3"), "did you mean --max-loras?"),
        (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
        (("--max-loras", "many"), "--max-loras"),
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
        ("--config", "/etc/passwd"),
        ("--help",),
    ],
)
def test_arguments_that_it_takes_are_no_warning(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert warnings(*arguments) == ()
    assert capsys.readouterr().out == ""


def test_an_image_of_its_own_may_have_other_flags() -> None:
    assert warnings("--no-such-flag", image="acme/engine:2") == ()
