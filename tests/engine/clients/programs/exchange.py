"""What every client's program asks, the tool it offers, and how it tells what it got.

A program is started as `python NAME.py URL EMBEDDER_URL` in the clients' own environment, and its
output is one JSON object: of each API that the client speaks what came back.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import BaseModel

HELLO = "Say hello."
WEATHER = "What is the weather in Paris?"
PERSON = "Who wrote the first program?"
TEXTS = ["What is ATOM?", "An inference engine."]
MODEL = "tiny"
KEY = "none"
URL, EMBEDDER_URL = sys.argv[1:3] if len(sys.argv) >= 3 else ("", "")  # else the test reads this

calls: list[str] = []  # of the tool, by the cities asked for

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "Tells the weather.", "parameters": CITY}
PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


# The typed answer that every client asks for. It has no docstring: clients send that, too.
class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    calls.append(city)
    return "sunny, 20 degrees"


def exchanged(chat: str, pieces: list[str], answer: str, person: Any) -> dict[str, Any]:
    """One API's part of the output; takes the calls of the tool that were made for it."""
    made = list(calls)
    calls.clear()
    return {"chat": chat, "pieces": pieces, "calls": made, "answer": answer, "person": person}


def report(**parts: Any) -> None:
    print(json.dumps(parts))
