"""Simon Willison's llm: the model from its file of further models, by its Python API."""

from __future__ import annotations

import json
import os
from pathlib import Path

import llm
from exchange import (
    HELLO,
    KEY,
    MODEL,
    PERSON,
    PERSON_SCHEMA,
    URL,
    WEATHER,
    exchanged,
    get_weather,
    report,
)

folder = Path(os.environ["LLM_USER_PATH"])
entry = {
    "model_id": "atom",
    "model_name": MODEL,
    "api_base": f"{URL}/v1",
    "supports_tools": True,
    "supports_schema": True,
}
# JSON is YAML.
(folder / "extra-openai-models.yaml").write_text(json.dumps([entry]))
model = llm.get_model("atom")
model.key = KEY
chat = model.prompt(HELLO, stream=False).text()
pieces = [piece for piece in model.prompt(HELLO, stream=True) if piece]
answer = model.chain(WEATHER, tools=[get_weather], stream=False).text()
person = json.loads(model.prompt(PERSON, schema=PERSON_SCHEMA, stream=False).text())
report(chats=exchanged(chat, pieces, answer, person))
