"""`check`, which helm test runs: what it accepts, and what it says when something is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from atom_operator.check_command import (
    Check,
    CheckError,
    api_is_served,
    lease_is_renewed,
    report,
)
from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import ObjectKey
from atom_operator.leadership.lease import LeaseRecord, LeaseTimes
from tests.support.operator.builders_operator import cluster_with
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.virtual_time import run_virtually

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HELD = LeaseRecord("operator-1", 12, NOW, NOW, 0, version="1")


@dataclass
class SeenLease:
    """A Lease that its holder renews every so many reads, or never."""

    record: LeaseRecord | None
    renewed_every: int = 0
    reads: int = 0

    async def read(self) -> LeaseRecord | None:
        self.reads += 1
        if self.record is not None and self.renewed_every and self.reads % self.renewed_every == 0:
            self.record = replace(self.record, version=str(self.reads))
        return self.record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        raise AssertionError("a check writes nothing")

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        raise AssertionError("a check writes nothing")


class Forbidding(FakeCluster):
    """A cluster whose role is not bound."""

    async def list_deployments(self) -> list[ObjectKey]:
        raise RefusedError("atomdeployments is forbidden", 403)


def test_a_lease_that_its_holder_renews_passes() -> None:
    found = run_virtually(lease_is_renewed(SeenLease(HELD, renewed_every=3), LeaseTimes()))
    assert "operator-1" in found


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (None, "held by none"),
        (replace(HELD, holder=""), "held by none"),
        (HELD, "held by operator-1"),
    ],
    ids=["no lease", "released", "its holder is gone"],
)
def test_a_lease_that_nobody_renews_fails(record: LeaseRecord | None, said: str) -> None:
    with pytest.raises(CheckError, match=said):
        run_virtually(lease_is_renewed(SeenLease(record), LeaseTimes()))


async def test_the_api_is_served_or_the_remedy_is_named() -> None:
    assert "has 1 AtomDeployments" in await api_is_served(cluster_with())
    with pytest.raises(CheckError, match=r"forbidden.*crds\.enabled"):
        await api_is_served(Forbidding())


async def test_every_question_is_asked_and_one_failure_is_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fine() -> str:
        return "as it should be"

    async def wrong() -> str:
        raise CheckError("not at all; mend it")

    assert await report([Check("a", wrong), Check("b", fine)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "ok    b: as it should be\n"
    assert captured.err == "FAILED a: not at all; mend it\n"
    assert await report([Check("b", fine)]) == 0
