"""Reproducible roles of spec.disaggregation sum up in one order, or are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from atom_operator.validation.disaggregation import roles_go_with_the_rest
from tests.support.operator.builders_operator import parsed


@pytest.mark.parametrize("seed", range(40))
def test_reproducible_roles_sum_up_in_one_order(seed: int) -> None:
    """Of GPUs, between which engines of unlike numbers or kinds exchange no reproducible page."""
    dice = random.Random(seed)
    tensor, product = (
        {"tensor": dice.choice((1, 2))},
        {"product": dice.choice(("MI300X", "MI355X"))},
    )

    def drawn() -> dict[str, Any]:
        role: dict[str, Any] = {}
        if dice.random() < 0.5:
            role["parallelism"] = {"tensor": dice.choice((1, 2))}
        if dice.random() < 0.5:
            role["accelerator"] = {"product": dice.choice(("MI300X", "MI355X"))}
        return role

    roles = drawn(), drawn()
    reproducible, on_cpu = dice.random() < 0.8, dice.random() < 0.2
    whole = parsed(
        engine={"reproducible": reproducible},
        accelerator={"type": "cpu"} if on_cpu else {"type": "amd", **product},
        parallelism=tensor,
        disaggregation=dict(zip(("prefill", "decode"), roles, strict=True)),
    )
    found = {problem.field for problem in roles_go_with_the_rest(whole)}
    expected = set()
    if reproducible and not on_cpu:
        for place, default in (("parallelism", tensor), ("accelerator", product)):
            prefill, decode = ({**default, **role.get(place, {})} for role in roles)
            if prefill != decode:
                expected.add(f"spec.disaggregation.prefill.{place}.{next(iter(default))}")
    assert found == expected
