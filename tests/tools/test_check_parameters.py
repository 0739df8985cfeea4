"""The check of parameters refuses what is wide by position, and nothing else."""

from tools.check_parameters import too_wide

SIX = "a, b, c, d, e, f"


def test_a_function_of_six_is_named_with_its_place() -> None:
    (found,) = too_wide("some.py", f"x = 1\n\n\ndef wide({SIX}): ...\n")
    assert found.startswith("some.py:4: wide has 6 parameters, at most 5")


def test_methods_are_counted_without_their_receiver() -> None:
    methods = (
        f"class A:\n    def five(self, a, b, c, d, e): ...\n    async def wide(self, {SIX}): ..."
    )
    (found,) = too_wide("some.py", methods)
    assert "wide" in found


def test_parameters_that_a_call_must_name_are_not_counted() -> None:
    assert not too_wide("some.py", "def named(a, b, *, c, d, e, f, g): ...\n")


def test_kernels_are_exempt() -> None:
    assert not too_wide("k.py", f"@triton.jit\ndef kernel({SIX}): ...\n")
    launch = f'@triton.jit(do_not_specialize=["a"])\ndef kernel({SIX}): ...\n'
    assert not too_wide("k.py", launch)
    assert too_wide("k.py", f"@functools.cache\ndef host({SIX}): ...\n")
