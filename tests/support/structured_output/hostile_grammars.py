"""Grammars that are small and may be slow to follow, by family and size: ambiguous, nullable,
nested, deep, long, and counted ones, in every notation that a request may use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from atom.structured_outputs import StructuredOutputsParams

Kind = dict[str, Any]


def _chain(body: str, last: str, size: int) -> str:
    rules = "\n".join(body.format(this=f"r{i}", next=f"r{i + 1}") for i in range(size))
    return f"root ::= r0 r0\n{rules}\nr{size} ::= {last}"


def _nested(inner: str, wrap: str, size: int) -> str:
    for _ in range(size):
        inner = wrap.format(inner)
    return inner


def _alike(size: int) -> dict[str, Any]:
    """Alternatives that begin alike and differ at their end."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "a": {"type": "string"},
                    "b": {"type": "string"},
                    "c": {"const": number},
                },
                "required": ["a", "b", "c"],
            }
            for number in range(size)
        ]
    }


def _tag(pattern: str) -> str:
    structure = {"type": "regex", "pattern": pattern}
    return json.dumps({"type": "structural_tag", "format": structure})


# By the sizes that are small, and what makes one of them. Each allows many entries after another,
# so that a model can walk into it.
FAMILIES: dict[str, Callable[[int], Kind]] = {
    "nullable pairs": lambda n: {
        "grammar": _chain('{this} ::= {next} {next} | ""', '[a-z] | ""', n)
    },
    "nullable triples": lambda n: {
        "grammar": _chain("{this} ::= {next} {next}? {next}?", '[a-z ]*', n)
    },
    "two ways each": lambda n: {
        "grammar": _chain("{this} ::= {next} | {next} {next}", "[a-z ]", n)
    },
    "left and right": lambda n: {
        "grammar": "root ::= s\ns ::= s s | s s s | " + " | ".join(["[a-z ]"] * n)
    },
    "both sides": lambda n: {
        "grammar": "root ::= s\ns ::= " + " | ".join(['"a"? s "b"? s', "[a-z ]"] * n)
    },
    "deep": lambda n: {"grammar": 'root ::= x x\nx ::= "(" x ")" | x [a-z ] | [a-z ] x | [a-z ]'},
    "stars in a row": lambda n: {"regex": "(.*)*x" * n},
    "stars in stars": lambda n: {"regex": _nested(".", "({})*", min(n, 12)) + "0"},
    "optional and needed": lambda n: {"regex": "([a-z ]?)" * n + "[a-z ]" * n},
    "alternatives in stars": lambda n: {"regex": "(" + "|".join(["[a-z ]*", ".+"] * n) + ")*0"},
    "counts in counts": lambda n: {"regex": f"(([a-z ]{{0,{n}}}){{0,{n}}}){{0,{n}}}0"},
    "a long count": lambda n: {"regex": f"(.?){{{n * 10}}}.{{{n * 10}}}"},
    "unicode classes": lambda n: {"regex": r"((\w|\s|[^a]|[\u0080-\uffff])*.)*" * n + "0"},
    "long alternatives": lambda n: {
        "grammar": "root ::= w*\nw ::= " + " | ".join(f'[a-z ]* "{i}"' for i in range(n * 10))
    },
    "alike objects": lambda n: {"json": _alike(n * 2)},
    "patterns in a schema": lambda n: {
        "json": {"type": "array", "items": {"type": "string", "pattern": "(a*|.*)*x" * n}}
    },
    "a tag": lambda n: {"structural_tag": _tag("(.*)*x" * n)},
}  # fmt: skip


def hostile(sizes: tuple[int, ...]) -> Iterator[tuple[str, StructuredOutputsParams]]:
    """Each family at each size."""
    for name, make in FAMILIES.items():
        for size in sizes:
            yield f"{name}, {size}", StructuredOutputsParams(**make(size))
