"""Certificates over the years: renewed in time, and never unknown to an API server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from atom_operator.webhook.certificates import (
    CA_LIFETIME,
    OVERLAP,
    SERVING_LIFETIME,
    kept_fresh,
    make_set,
)

HOSTS = ("atom-operator-webhook.atom-system.svc", "10.1.2.3")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def verify(serving: bytes, trusted: bytes, now: datetime, host: str = HOSTS[0]) -> None:
    """As the API server does in a TLS handshake."""
    store = Store(x509.load_pem_x509_certificates(trusted))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(host))
    verifier.verify(x509.load_pem_x509_certificate(serving), [])


def test_the_serving_certificate_verifies_for_its_hosts_and_no_other() -> None:
    made = make_set(HOSTS, NOW)
    verify(made.serving.certificate, made.trusted, NOW)
    verify(made.serving.certificate, made.trusted, NOW - timedelta(minutes=50))  # a slow clock
    with pytest.raises(VerificationError):
        verify(made.serving.certificate, made.trusted, NOW, "somebody.else.svc")


def test_nothing_is_renewed_before_two_thirds_of_its_life() -> None:
    made = make_set(HOSTS, NOW)
    for days in (0, 1, 30, 59):
        assert kept_fresh(made, HOSTS, NOW + timedelta(days=days)) is made


def test_a_renewal_leaves_what_api_servers_trust_alone() -> None:
    made = make_set(HOSTS, NOW)
    later = NOW + SERVING_LIFETIME * 0.7
    renewed = kept_fresh(made, HOSTS, later)
    assert renewed.serving != made.serving
    assert (renewed.ca, renewed.trusted) == (made.ca, made.trusted)
    verify(renewed.serving.certificate, made.trusted, later)
    assert kept_fresh(renewed, HOSTS, later + timedelta(minutes=1)) is renewed


def test_through_twelve_years_every_certificate_served_is_trusted_before_and_after() -> None:
    current, now, authorities = make_set(HOSTS, NOW), NOW, set()
    for _ in range(12 * 52):
        before = current.trusted  # what an API server still believes that has not heard of a change
        now += timedelta(days=7)
        current = kept_fresh(current, HOSTS, now)
        verify(current.serving.certificate, before, now)
        verify(current.serving.certificate, current.trusted, now)
        authorities.add(current.ca.certificate)
        assert current.expires > now + timedelta(days=7)
    assert len(authorities) == 2
    assert current.trusted.count(b"BEGIN CERTIFICATE") <= 2


def test_a_new_authority_is_announced_before_it_signs() -> None:
    made = current = make_set(HOSTS, NOW)
    now = NOW
    while current.ca == made.ca:
        now += timedelta(days=7)
        current = kept_fresh(current, HOSTS, now)
    assert NOW + CA_LIFETIME * 0.6 < now < NOW + CA_LIFETIME * 0.7
    verify(current.serving.certificate, made.trusted, now)
    assert current.trusted == current.ca.certificate + made.ca.certificate
    now += OVERLAP + timedelta(hours=2)
    switched = kept_fresh(current, HOSTS, now)
    verify(switched.serving.certificate, current.ca.certificate, now)


def test_other_hosts_need_another_certificate_at_once() -> None:
    made = make_set(HOSTS, NOW)
    moved = kept_fresh(made, ("elsewhere.svc",), NOW)
    verify(moved.serving.certificate, made.trusted, NOW, "elsewhere.svc")


def test_an_expired_certificate_is_replaced_whatever_else_waits() -> None:
    made = make_set(HOSTS, NOW)
    later = NOW + SERVING_LIFETIME + timedelta(days=1)
    verify(kept_fresh(made, HOSTS, later).serving.certificate, made.trusted, later)


def test_a_key_that_does_not_belong_to_its_certificate_is_replaced() -> None:
    made, other = make_set(HOSTS, NOW), make_set(HOSTS, NOW)
    mixed = replace(made, serving=replace(made.serving, key=other.serving.key))
    assert kept_fresh(mixed, HOSTS, NOW).serving not in (mixed.serving, made.serving)


def test_unreadable_certificates_are_a_value_error() -> None:
    made = make_set(HOSTS, NOW)
    with pytest.raises(ValueError):
        kept_fresh(replace(made, ca=replace(made.ca, certificate=b"nonsense")), HOSTS, NOW)


def test_no_private_key_is_in_a_printed_set() -> None:
    assert "PRIVATE" not in repr(make_set(HOSTS, NOW))
