"""Formats that are held to: each as an expression of the texts that every validator takes for it.

Dates keep to the calendar, leap years too. A format that is not listed is an annotation, as JSON
schema has it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from atom.structured_outputs.regex import spanned

_DAY_OF_MONTH = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
)
_YEAR = r"(?:[1-9]\d{3})"
_LEAP_YEAR = r"(?:(?:[1-9]\d)(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-{_DAY_OF_MONTH}|{_LEAP_YEAR}-02-29)"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?{_ZONE}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [rf"(?:{_GROUP}:){{7}}{_GROUP}"]
    + [rf"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)]
    + [rf"::(?:{_GROUP}:){{0,6}}{_GROUP}", rf"(?:{_GROUP}:){{1,7}}:", "::"]
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,5}}"
_ESCAPE = r"%[0-9A-Fa-f]{2}"
_PATH_CHARACTER = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|{_ESCAPE})"
_PATH = rf"(?:/{_PATH_CHARACTER}*)*"
_TAIL = rf"(?:\?(?:{_PATH_CHARACTER}|[/?])*)?(?:#(?:{_PATH_CHARACTER}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?::\d{{1,4}})?{_PATH}{_TAIL}"
_TOKEN = r"(?:[^~/]|~[01])*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+"
_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"

FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\d+W)",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}",
    "idn-email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "url": _URI,
    "iri": _URI,
    "uri-reference": rf"(?:{_URI}|{_PATH}{_TAIL})",
    "iri-reference": rf"(?:{_URI}|{_PATH}{_TAIL})",
    "uri-template": rf"(?:[A-Za-z0-9\-._~:/?#@!$&()*+,;=]|{_ESCAPE}|\{{[A-Za-z0-9_.,]+\}})*",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": rf"(?:/{_TOKEN})*",
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|(?:/{_TOKEN})*)",
}


@cache
def format_expression(name: str) -> str | None:
    """Return the expression of a format's texts, as the grammar library reads it; None for a format
    that is an annotation."""
    return spanned(FORMATS[name]) if name in FORMATS else None
