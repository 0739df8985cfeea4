"""Base of the request models: strict JSON, the text of each field, and the fields of every route.

The docstring of a field is its text in the OpenAPI document and on the page of request fields.
Knows no route: the `protocol.py` of each API declares its bodies, and `field_check` reads them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from atom.entrypoints.request_fields.field_row import Endpoint
from atom.model_engine.request import MAX_PRIORITY, MAX_SALT_CHARS

MAX_TIMEOUT_SECONDS = 24 * 3600
ID_PATTERN = r"^[A-Za-z0-9._:/+=-]{1,128}$"  # of text that may be in a header, too


def _whole(value: Any) -> Any:
    """Convert whole floats to integers: JSON has one kind of number, and some clients write 3 as
    3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
# The bounds are inside the conversion, so that the schema has them as minimum and maximum.
_Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), BeforeValidator(_whole)]
_Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS)]
MAX_DEADLINE_MS = MAX_TIMEOUT_SECONDS * 1000
_Deadline = Annotated[float, Field(gt=0, le=MAX_DEADLINE_MS)]


class StrictModel(BaseModel):
    """Base of each object in a body. closed: unknown fields of it are refused, since they would
    have changed the answer."""

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True
    )
    closed: ClassVar[bool] = False


class RequestBody(StrictModel):
    """Base of the bodies that POST routes take. endpoint: whose other fields `field_table` has."""

    endpoint: ClassVar[Endpoint]

    model: str | None = None
    """Name of the served model; the one that is served, unless it is sent."""


class ServedBody(RequestBody):
    """Base of the bodies that the engine's scheduler serves."""

    request_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    """Your name of the request; the answer's id ends with it."""
    priority: _Priority | None = None
    """From -100 to 100; lower is served sooner, by one second of waiting a step."""
    cache_salt: Annotated[str, Field(max_length=MAX_SALT_CHARS)] | None = None
    """Only requests of the same salt share cached prompts: one per tenant keeps them apart."""
    timeout_seconds: _Timeout | None = None
    """Seconds after which the request ends; an answer has its tokens so far."""
    timeout: _Timeout | None = None
    """The same as timeout_seconds; the header X-Request-Timeout sets it as well."""


class DeadlineFields(StrictModel):
    """The field of the time until a first token."""

    deadline_ms: _Deadline | None = None
    """Milliseconds until the first token: if it is expected later, the request is refused with 429,
    or ended with 503 once they have passed (--deadline-action). The header X-Request-Deadline-Ms
    sets it as well."""
