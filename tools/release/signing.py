"""Keyed signatures in cosign's forms: of a file, of an in-toto statement (DSSE), of an artefact in
a registry. ECDSA on P-256 with SHA-256, the kind of key that `cosign generate-key-pair` makes; no
transparency log is asked.

The key is the caller's: read from a file, never made here.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from tools.release.archives import OCI_CONFIG, OciArtefact, canonical_json, sha256
from tools.release.errors import ReleaseError

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
IN_TOTO = "application/vnd.in-toto+json"


def read_private_key(file: Path, password: str | None) -> PrivateKey:
    """Raises `ReleaseError` where it is not a PEM file of such a key, or the password is wrong."""
    try:
        key = load_pem_private_key(file.read_bytes(), password.encode() if password else None)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseError(
            f"no private key can be read from {file} ({error}): give a PEM file (`openssl ecparam "
            "-name prime256v1 -genkey -noout`, `openssl pkcs8 -topk8`), and its password in "
            "COSIGN_PASSWORD"
        ) from error
    if not isinstance(key, PrivateKey) or key.curve.name != "secp256r1":
        raise ReleaseError(f"{file} holds another kind of key: signatures are ECDSA on P-256")
    return key


def read_public_key(file: Path) -> PublicKey:
    try:
        key = load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ReleaseError(f"no public key can be read from {file}: {error}") from error
    if not isinstance(key, PublicKey):
        raise ReleaseError(f"{file} holds another kind of key: signatures are ECDSA on P-256")
    return key


def sign(key: PrivateKey, data: bytes) -> str:
    """The base64 text that `cosign verify-blob --signature` takes; the same for the same data."""
    signed = key.sign(data, ec.ECDSA(SHA256(), deterministic_signing=True))
    return base64.b64encode(signed).decode()


def verify(key: PublicKey, data: bytes, signature: str, name: str) -> None:
    """Raises `ReleaseError` naming `name` where the signature is not the key's of the data."""
    try:
        key.verify(base64.b64decode(signature, validate=True), data, ec.ECDSA(SHA256()))
    except (InvalidSignature, binascii.Error) as error:
        raise ReleaseError(
            f"{name} is not signed by this key: it was changed, or is another's; do not use it"
        ) from error


def envelope(key: PrivateKey, statement: bytes) -> bytes:
    """A statement in a DSSE envelope (github.com/secure-systems-lab/dsse)."""
    signed = {"keyid": "", "sig": sign(key, _pre_authentication(statement))}
    payload = base64.b64encode(statement).decode()
    return canonical_json({"payloadType": IN_TOTO, "payload": payload, "signatures": [signed]})


def open_envelope(key: PublicKey, text: bytes, name: str) -> bytes:
    """The statement in it. Raises `ReleaseError` where the key did not sign it."""
    held = json.loads(text)
    statement = base64.b64decode(held["payload"])
    for signed in held["signatures"]:
        verify(key, _pre_authentication(statement), signed["sig"], name)
    if not held["signatures"] or held["payloadType"] != IN_TOTO:
        raise ReleaseError(f"{name} has no signature of an in-toto statement; do not use it")
    return statement


def _pre_authentication(statement: bytes) -> bytes:
    kind = IN_TOTO.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(statement), statement)


def registry_signature(key: PrivateKey, artefact: str) -> OciArtefact:
    """Make what `cosign verify --key` looks for beside an artefact, named by its digest."""
    reference, _, digest = artefact.partition("@")
    said = {
        "critical": {
            "identity": {"docker-reference": reference},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    payload = canonical_json(said)
    return _beside(
        payload,
        "application/vnd.dev.cosign.simplesigning.v1+json",
        {"dev.cosignproject.cosign/signature": sign(key, payload)},
    )


def registry_attestation(signed: bytes, predicate_type: str) -> OciArtefact:
    """Make what `cosign verify-attestation --key` looks for: a DSSE envelope."""
    return _beside(
        signed,
        "application/vnd.dsse.envelope.v1+json",
        {"dev.cosignproject.cosign/signature": "", "predicateType": predicate_type},
    )


def _beside(layer: bytes, layer_type: str, annotations: dict[str, str]) -> OciArtefact:
    config = {
        "architecture": "",
        "config": {},
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}"]},
    }
    return OciArtefact(
        canonical_json(config), OCI_CONFIG, layer, layer_type, layer_annotations=annotations
    )
