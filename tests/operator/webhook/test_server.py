"""The webhook's HTTPS server and its certificates, over real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.webhook.admission_review import ReviewRequest, Verdict
from atom_operator.webhook.certificate_keeper import (
    CertificateError,
    CertificateSource,
    MountedCertificates,
    OwnCertificates,
    keep,
)
from atom_operator.webhook.certificates import (
    SERVING_LIFETIME,
    CertificateSet,
    KeyPair,
    make_set,
)
from atom_operator.webhook.objects import StoredSet, secret_data, stored_set
from atom_operator.webhook.server import WebhookServer
from tests.support.operator.builders_admission import UID, creation
from tests.support.virtual_time import run_virtually
from tests.support.waiting import eventually

HOST = "127.0.0.1"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class StoredTrust:
    """The Secret and the caBundle, in memory, with optimistic concurrency."""

    stored: StoredSet | None = None
    bundle: bytes = b""
    writes: int = 0
    error: Exception | None = None

    async def read_set(self) -> StoredSet | None:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0)
        return self.stored

    async def write_set(self, content: CertificateSet, before: StoredSet | None) -> None:
        await asyncio.sleep(0)
        if (self.stored and self.stored.version) != (before and before.version):
            raise TransientError("409: written by another")
        self.writes += 1
        self.stored = StoredSet(str(self.writes), content)

    async def trust(self, authorities: bytes) -> bool:
        changed, self.bundle = authorities != self.bundle, authorities
        return changed


@dataclass
class Handed:
    """A certificate source whose certificate the test changes."""

    pair: KeyPair

    async def current(self) -> KeyPair:
        return self.pair


@dataclass
class Reviews:
    """What the server was asked, and the results it counted."""

    verdict: Verdict | Exception = field(default_factory=Verdict)
    asked: list[ReviewRequest] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    async def review(self, request: ReviewRequest) -> Verdict:
        self.asked.append(request)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


@asynccontextmanager
async def serving(reviews: Reviews, source: CertificateSource) -> AsyncIterator[WebhookServer]:
    server = WebhookServer(
        reviews.review, source, host=HOST, port=0, observe=reviews.results.append
    )
    task = asyncio.create_task(server.run())
    try:
        await eventually(lambda: server.port is not None or task.done(), "the server listens")
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def post(server: WebhookServer, trusted: bytes, body: object) -> tuple[int, Any]:
    context = ssl.create_default_context(cadata=trusted.decode())
    async with aiohttp.ClientSession() as session:
        url = f"https://{HOST}:{server.port}/validate"
        async with session.post(url, json=body, ssl=context) as answer:
            return answer.status, await answer.json(content_type=None) if answer.ok else None


async def test_a_review_is_answered_over_tls() -> None:
    reviews, made = Reviews(Verdict(("a warning",))), make_set([HOST], datetime.now(UTC))
    async with serving(reviews, Handed(made.serving)) as server:
        status, body = await post(server, made.trusted, creation())
    assert status == 200
    assert body["response"] == {"uid": UID, "allowed": True, "warnings": ["a warning"]}
    assert reviews.asked[0].key == ("default", "chat")
    assert reviews.results == ["allowed"]


async def test_an_error_of_ours_lets_the_object_pass() -> None:
    reviews, made = Reviews(ZeroDivisionError()), make_set([HOST], datetime.now(UTC))
    async with serving(reviews, Handed(made.serving)) as server:
        _, body = await post(server, made.trusted, creation())
    assert body["response"]["allowed"] is True
    assert "could not check" in body["response"]["warnings"][0]
    assert reviews.results == ["failed"]


async def test_what_is_no_review_is_a_client_error() -> None:
    reviews, made = Reviews(), make_set([HOST], datetime.now(UTC))
    async with serving(reviews, Handed(made.serving)) as server:
        assert (await post(server, made.trusted, {"kind": "Other"}))[0] == 400
        assert (await post(server, made.trusted, []))[0] == 400
    assert (reviews.asked, reviews.results) == ([], ["invalid", "invalid"])


async def test_a_new_certificate_is_served_without_a_restart() -> None:
    """And a connection that was open before goes on."""
    now = datetime.now(UTC)
    old, new = make_set([HOST], now), make_set([HOST], now)
    reviews, source = Reviews(), Handed(old.serving)
    server = WebhookServer(
        reviews.review, source, host=HOST, port=0, observe=reviews.results.append
    )
    loaded = asyncio.create_task(server.run())
    await eventually(lambda: server.port is not None, "the server listens")
    context = ssl.create_default_context(cadata=old.trusted.decode())
    url = f"https://{HOST}:{server.port}/validate"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json=creation(), ssl=context) as answer:
            assert answer.ok
        server.load(new.serving)
        async with session.post(url, json=creation(), ssl=context) as answer:
            assert answer.ok  # the kept connection
    assert (await post(server, new.trusted, creation()))[0] == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await post(server, old.trusted, creation())
    loaded.cancel()
    await asyncio.gather(loaded, return_exceptions=True)


async def test_the_first_replica_makes_certificates_and_the_others_use_them() -> None:
    trust = StoredTrust()
    replicas = [OwnCertificates(trust, (HOST,), lambda: NOW) for _ in range(3)]
    first = await replicas[0].current()
    assert [await replica.current() for replica in replicas] == [first] * 3
    assert trust.writes == 1
    assert trust.stored is not None
    assert trust.stored.content is not None
    assert trust.bundle == trust.stored.content.trusted


async def test_replicas_that_start_together_agree_on_one_certificate() -> None:
    trust = StoredTrust()
    replicas = [OwnCertificates(trust, (HOST,), lambda: NOW) for _ in range(3)]
    results = await asyncio.gather(*(r.current() for r in replicas), return_exceptions=True)
    assert sum(isinstance(result, KeyPair) for result in results) == 1
    assert sum(isinstance(result, TransientError) for result in results) == 2
    assert len({await replica.current() for replica in replicas}) == 1
    assert trust.writes == 1


async def test_an_empty_or_spoilt_secret_is_filled_again() -> None:
    trust = StoredTrust(StoredSet("7", None))
    source = OwnCertificates(trust, (HOST,), lambda: NOW)
    first = await source.current()
    assert trust.stored is not None
    made = trust.stored.content
    assert made is not None
    spoilt = CertificateSet(KeyPair(b"x", b"y"), made.trusted, made.serving)
    trust.stored = StoredSet("8", spoilt)
    trust.writes = 8
    assert await source.current() != first
    assert trust.bundle == trust.stored.content.ca.certificate  # type: ignore[union-attr]


async def test_a_caBundle_that_somebody_emptied_is_put_back() -> None:
    trust = StoredTrust()
    source = OwnCertificates(trust, (HOST,), lambda: NOW)
    await source.current()
    bundle, trust.bundle = trust.bundle, b""
    await source.current()
    assert trust.bundle == bundle
    assert trust.writes == 1


def test_certificates_are_renewed_while_the_operator_runs() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        trust, seen = StoredTrust(), []
        source = OwnCertificates(trust, (HOST,), lambda: NOW + timedelta(seconds=loop.time()))
        task = asyncio.create_task(keep(source, seen.append, check_seconds=3600))
        await asyncio.sleep(SERVING_LIFETIME.total_seconds() * 2)
        assert len(seen) == len(set(seen)) == 3
        trust.error = TransientError("the API server restarts")
        await asyncio.sleep(30)
        trust.error = RefusedError("secrets is forbidden", 403)
        await asyncio.sleep(30)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])

    run_virtually(main())


async def test_mounted_certificates_follow_their_files(tmp_path: Path) -> None:
    source = MountedCertificates(tmp_path)
    with pytest.raises(CertificateError, match="is the Secret mounted"):
        await source.current()
    one, two = make_set([HOST], NOW).serving, make_set([HOST], NOW).serving
    for pair in (one, two):
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)
        assert await source.current() == pair
    (tmp_path / "tls.crt").write_bytes(one.certificate)
    with pytest.raises(CertificateError, match="does not belong"):
        await source.current()


def test_a_set_survives_its_secret() -> None:
    made = make_set([HOST], NOW)
    manifest = {"metadata": {"resourceVersion": "5"}, "data": secret_data(made)}
    assert stored_set(manifest) == StoredSet("5", made)
    del manifest["data"]["ca.key"]  # type: ignore[attr-defined]
    assert stored_set(manifest) == StoredSet("5", None)
    assert stored_set({"metadata": {}, "data": None}) == StoredSet("", None)
