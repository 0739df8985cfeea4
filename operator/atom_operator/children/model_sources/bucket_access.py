"""Variables by which clients of S3 reach a bucket: credentials by reference alone. Pure."""

from __future__ import annotations

from typing import Any

from atom_operator.domain import BucketAccess

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_OPTIONAL = "AWS_SESSION_TOKEN"


def bucket_environment(access: BucketAccess | None) -> dict[str, dict[str, Any]]:
    """Return the variables of a container that downloads from the bucket, by name; none without
    one."""
    if access is None:
        return {}
    said = {"AWS_ENDPOINT_URL": access.endpoint, "AWS_REGION": access.region}
    found: dict[str, dict[str, Any]] = {
        name: {"name": name, "value": value} for name, value in said.items() if value is not None
    }
    for name in _CREDENTIALS if access.secret is not None else ():
        reference: dict[str, Any] = {"name": access.secret, "key": name}
        if name == _OPTIONAL:
            reference["optional"] = True
        found[name] = {"name": name, "valueFrom": {"secretKeyRef": reference}}
    return found
