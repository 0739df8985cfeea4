"""Kinds of object that the operator never touches and a cluster has all the same."""

from __future__ import annotations

from atom_operator.kinds import Kind

STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGE = Kind("", "v1", "LimitRange", "limitranges")
SECRET = Kind("", "v1", "Secret", "secrets")
