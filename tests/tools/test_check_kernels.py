"""`make lint` refuses kernels beyond their limits, by file, line and remedy."""

from __future__ import annotations

import re

import pytest

from tools.check_kernels import (
    EXPLAINED_LINES,
    MOST_LINES,
    MOST_PARAMETERS,
    ROOT,
    kernels,
    measure,
    problems,
    share,
)
from tools.kernel_code import instructions, verdict


def kernel(*, lines: int = 10, parameters: int = 2, comments: int = 2, decorator: str = "") -> str:
    """A compiled function of so many lines, its comments among them."""
    names = ", ".join(f"p{number}" for number in range(parameters))
    code = ["    x = 0"] * (lines - comments - 1)
    body = [code[0], *["    # why"] * comments, *code[1:]]
    return "\n".join([f"@triton.jit{decorator}", f"def kernel({names}):", *body]) + "\n"


def test_what_is_measured_of_a_kernel() -> None:
    (found,) = measure("a.py", kernel(lines=12, parameters=5, comments=3))
    assert (found.name, found.line, found.lines) == ("kernel", 2, 12)
    assert (found.parameters, found.comments) == (5, 3)
    assert share([found]) == 0.25


def test_kernels_are_measured_in_every_folder_that_has_any() -> None:
    folders = {
        str(path.parent.relative_to(ROOT))
        for path in (ROOT / "engine").rglob("*.py")
        if re.search(r"^@triton\.jit", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {each.file.rpartition("/")[0] for each in kernels()} == folders
    assert len(folders) >= 8


@pytest.mark.parametrize("decorator", ["", "(do_not_specialize=['n'])"])
def test_every_form_of_the_decorator_is_seen(decorator: str) -> None:
    assert len(measure("a.py", kernel(decorator=decorator))) == 1


def test_functions_that_triton_does_not_compile_have_other_rules() -> None:
    assert measure("a.py", "def long():\n" + "    x = 0\n" * 200) == []


def test_comments_for_tools_explain_nothing() -> None:
    source = "@triton.jit\ndef kernel(x):  # fmt: skip\n    x = 0  # noqa: SIM102\n    y = 1\n"
    assert measure("a.py", source)[0].comments == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (kernel(lines=MOST_LINES + 1, comments=10), "has 91 lines, more than 90; give"),
        (kernel(parameters=MOST_PARAMETERS + 1), "has 25 parameters, more than 24; compute"),
        (
            kernel(lines=EXPLAINED_LINES, comments=0) + kernel(lines=20, comments=9),
            "has 30 lines and no comment; say why",
        ),
        (kernel(lines=29, comments=2), "comments are 6.9% of kernels' lines, fewer than 8%; say"),
    ],
)
def test_a_kernel_beyond_a_limit_is_refused_with_its_remedy(source: str, said: str) -> None:
    (fault,) = problems(measure("moe/a.py", source))
    assert said in fault


def test_a_kernel_at_every_limit_is_taken() -> None:
    source = kernel(lines=MOST_LINES, parameters=MOST_PARAMETERS, comments=8)
    assert problems(measure("a.py", source)) == []


PTX = """
.visible .entry _old_kernel(
    .param .u64 .ptr .global .align 1 _old_kernel_param_0,
)
    .loc 1 12 4 // decode.py:12:4
    ld.param.b64 %rd1, [_old_kernel_param_0];
    add.s32 %r1, %r2, 3;
    mul.f32 %f1, %f2, %f3;
    .section .debug_info
    anything
"""


def test_code_is_the_same_whatever_the_kernel_and_its_lines_are_called() -> None:
    renamed = PTX.replace("_old_kernel", "w13_kernel").replace("1 12 4 // decode", "1 90 2 // w13")
    renamed = renamed.replace("param_0,", "param_0,\n    .param .u64 .ptr unread_1,")
    assert verdict(instructions(PTX, "_old_kernel"), instructions(renamed, "w13_kernel")) == "same"


def test_another_order_and_another_instruction_are_told_apart() -> None:
    before = instructions(PTX, "_old_kernel")
    lines = before.splitlines()
    turned = "\n".join([*lines[:-2], lines[-1], lines[-2]])
    assert verdict(before, turned) == "same instructions in another order"
    assert verdict(before, before.replace("mul.f32", "fma.rn.f32")) == "differs"
