"""TagReader: read the opening tags of notations in XML's manner, as models write them.

    <function=bash>    <function="bash">    <invoke name="bash">
    <parameter=city>   <parameter name='city' string="true">

A tag ends with its ">"; if that is missing, a line break or another mark ends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atom.answer_parsing.call_policy import property_before
from atom.answer_parsing.markup_parser import MOST_NAME_CHARS, MarkupParser, Reading

MOST_TAG_CHARS = 1024
_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")


def attributes_of(tag: str) -> Mapping[str, str]:
    """Return the attributes of a tag's text."""
    return {name: a or b or c for name, a, b, c in _ATTRIBUTE.findall(tag)}


def _named(tag: str) -> str:
    """Find the name in a tag's text after the mark: an attribute `name`, or the whole text."""
    if tag.startswith('name="') and tag.endswith('"') and '="' not in tag[6:]:
        return tag[6:-1]  # with any signs
    found = attributes_of(tag)
    if "name" in found:
        return found["name"]
    return "" if found else tag.strip("= \t\"'")


class TagReader(MarkupParser):
    """Read tags after their marks. _tag: the text of the last one."""

    _tag = ""

    def _tag_head(self, names: Sequence[str]) -> Reading[str]:
        """Pass the rest of a call's opening tag: the name; "" for none."""
        if any(sign in name for name in names for sign in "<>\n"):
            forms = {form.format(name): name for name in names for form in ("{}>", 'name="{}">')}
            found = yield from self._one_of(*forms)
            if found:
                return forms[found]
        tag = yield from self._tag_text(MOST_NAME_CHARS)
        return "" if tag is None else _named(tag[0])

    def _tag_key(self, schema: Mapping[str, Any] | None) -> Reading[str]:
        """Read the rest of an argument's opening tag; return the key, or "" if there is none. If
        the tag is not closed, the key must be one of the tool's, directly followed by the value."""
        start = self._at
        tag = yield from self._tag_text(MOST_TAG_CHARS)
        if tag is None:
            return ""
        if tag[1] == ">" and _named(tag[0]):
            return _named(tag[0])
        self._at = start
        while tag[1] == "\n" and not tag[0].strip():  # the key is on the next line
            start += len(tag[0]) + 1
            self._at = start
            tag = yield from self._tag_text(MOST_TAG_CHARS)
            if tag is None:
                return ""
        begun = len(tag[0]) - len(tag[0].lstrip("= \t"))
        key = property_before(tag[0][begun:], schema)
        behind = tag[0][begun + len(key) :]
        self._at = start + begun + len(key) + len(behind) - len(behind.lstrip(" \t=:"))
        return key

    def _tag_text(self, most: int) -> Reading[tuple[str, str] | None]:
        """Read the text of a tag; return it with the sign that ends it, or None if it is too
        long."""
        written = ""
        while True:
            found = yield from self._up_to(">", "\n", "<", most=most)
            if found is None:
                return None
            written += found[0]
            if found[1] != ">" or written.count('"') % 2 == 0 or len(written) > most:
                break
            written += ">"  # within a name
        if found[1] != ">":
            self._at -= 1
            self._tag = written
            return written, found[1]
        self._tag = written
        return written, ">"
