"""anthropic: messages, the tool run by the client's own loop, an answer by a schema."""

from __future__ import annotations

from anthropic import Anthropic, beta_tool
from exchange import HELLO, KEY, MODEL, PERSON, URL, WEATHER, Person, exchanged, get_weather, report

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)


def texts(message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def asked(text: str) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "max_tokens": 500, "messages": messages}


chat = client.messages.create(**asked(HELLO))
with client.messages.stream(**asked(HELLO)) as stream:
    pieces = list(stream.text_stream)
runner = client.beta.messages.tool_runner(tools=[beta_tool(get_weather)], **asked(WEATHER))
answer = texts(runner.until_done())
parsed = client.messages.parse(output_format=Person, **asked(PERSON))
count = client.messages.count_tokens(model=MODEL, messages=asked(HELLO)["messages"])
assert count.input_tokens == chat.usage.input_tokens
report(messages=exchanged(texts(chat), pieces, answer, parsed.parsed_output.model_dump()))
