"""The webhook's certificates: their contents, and when each is renewed.

A CA that lives for years signs a serving certificate that lives for weeks, so a renewal changes
nothing that the API servers trust. A new CA is trusted for a day beside the old one before it
signs: no API server ever meets a certificate that it does not know. The clock is a parameter; keys
come from the operating system. Called by the certificate keeper.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = timedelta(days=3650)
SERVING_LIFETIME = timedelta(days=90)
OVERLAP = timedelta(days=1)  # a new CA is trusted for so long before it signs
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """Hold the certificates that replicas share. `trusted`: the PEM certificates for the API
    server's caBundle."""

    ca: KeyPair
    trusted: bytes
    serving: KeyPair

    @property
    def expires(self) -> datetime:
        """End of the serving certificate."""
        return _load(self.serving.certificate).not_valid_after_utc


def make_set(hosts: Iterable[str], now: datetime) -> CertificateSet:
    """Return a CA and a serving certificate for `hosts` (DNS names or addresses)."""
    ca = _make_ca(now)
    return CertificateSet(ca, ca.certificate, _sign(ca, tuple(hosts), now))


def kept_fresh(current: CertificateSet, hosts: Iterable[str], now: datetime) -> CertificateSet:
    """Renew the expiring parts of `current`; return the same object if there are none.

    Raises ValueError if a certificate cannot be read.
    """
    result, hosts = current, tuple(hosts)
    if _ages(_load(result.ca.certificate), now):
        ca = _make_ca(now)
        result = replace(result, ca=ca, trusted=ca.certificate + _still_valid(current, now))
    if _serving_is_due(result, hosts, now):
        result = replace(result, serving=_sign(result.ca, hosts, now))
    return result


def matches(serving: KeyPair) -> bool:
    """Return whether the key belongs to the certificate."""
    key = serialization.load_pem_private_key(serving.key, None)
    return key.public_key() == _load(serving.certificate).public_key()


def _serving_is_due(current: CertificateSet, hosts: tuple[str, ...], now: datetime) -> bool:
    serving, ca = _load(current.serving.certificate), _load(current.ca.certificate)
    if now >= serving.not_valid_after_utc or _hosts(serving) != set(hosts):
        return True
    if not matches(current.serving):
        return True
    announced = now - ca.not_valid_before_utc >= OVERLAP + _CLOCKS_DIFFER
    foreign = serving.issuer != ca.subject
    return announced and (foreign or _ages(serving, now))


def _ages(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether two thirds of its life are over."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now >= certificate.not_valid_before_utc + life * 2 / 3


def _still_valid(current: CertificateSet, now: datetime) -> bytes:
    known = x509.load_pem_x509_certificates(current.trusted)
    valid = [item for item in known if item.not_valid_after_utc > now]
    return b"".join(item.public_bytes(serialization.Encoding.PEM) for item in valid)


def _make_ca(now: datetime) -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial number keeps two CAs apart, which a verifier would otherwise mix up by their name.
    name = _name(f"atom-operator-webhook-ca-{x509.random_serial_number():x}"[:64])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _builder(name, key.public_key(), now, CA_LIFETIME)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def _sign(ca: KeyPair, hosts: tuple[str, ...], now: datetime) -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    ca_key = serialization.load_pem_private_key(ca.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    builder = (
        _builder(_name("atom-operator-webhook"), key.public_key(), now, SERVING_LIFETIME)
        .issuer_name(_load(ca.certificate).subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(_alternative, hosts)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    return _pair(builder.sign(ca_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _hosts(certificate: x509.Certificate) -> set[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *map(str, addresses)}


def _load(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)
