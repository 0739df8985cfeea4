"""Requests with images whose prompts one server computes and another answers, by our frontend in
every API and by a router's legs: a trained model names what the pictures show."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server.role_servers import divided_servers
from tests.support.server.server_process import SERVED_NAME, ServerProcess
from tests.support.waiting import HANG_SECONDS, wait_until
from tools.demo_eyes.pictures import COLOURS, Scene, Square, as_data_url
from tools.demo_eyes.questions import describe

MODEL = Path(__file__).parents[4] / "examples" / "models" / "atom-tiny-eyes"
_QUESTION = "What do you see?"
_PLACES = range(9)
_HEADER = "x-atom-kv-transfer"


def chat(url: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [image, {"type": "text", "text": _QUESTION}]
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields}


def messages(url: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    content = [{"type": "image", "source": source}, {"type": "text", "text": _QUESTION}]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 64}
    return "/v1/messages", {**asked, **fields}


def responses(url: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    content = [image, {"type": "input_text", "text": _QUESTION}]
    return "/v1/responses", {"input": [{"role": "user", "content": content}], **fields}


Api = Callable[..., tuple[str, dict[str, Any]]]
APIS = [chat, messages, responses]


def whole_text(answer: dict[str, Any]) -> str:
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    parts = answer["content"] if "content" in answer else answer["output"][0]["content"]
    return "".join(part["text"] for part in parts)


def streamed_text(stream: str) -> str:
    """The text of a stream of any of the three APIs."""
    told = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    pieces = []
    for event in map(json.loads, told):
        if "choices" in event:
            pieces += [each["delta"].get("content") or "" for each in event["choices"]]
        elif event.get("type") == "content_block_delta":
            pieces.append(event["delta"].get("text", ""))
        elif event.get("type") == "response.output_text.delta":
            pieces.append(event["delta"])
    return "".join(pieces)


@dataclass(frozen=True)
class Divided:
    front: ServerProcess
    producer: ServerProcess
    consumer: ServerProcess
    scenes: Iterator[Scene]

    def ask(self, server: ServerProcess, asked: tuple[str, dict[str, Any]]) -> httpx.Response:
        path, body = asked
        answer = httpx.post(
            f"{server.url}{path}",
            json={"model": SERVED_NAME, "temperature": 0, **body},
            timeout=HANG_SECONDS,
        )
        assert answer.status_code == 200, answer.text
        return answer

    @property
    def transfers(self) -> float:
        return self.consumer.metric("kv_transfer_requests_total")

    @property
    def encoded(self) -> float:
        """Images that the consumer has encoded."""
        return self.consumer.metric("mm_encoder_seconds_count")


@contextmanager
def servers_of_pictures(folder: Path) -> Iterator[Divided]:
    """Serve by a frontend and both roles, which have found each other."""
    places = itertools.combinations(_PLACES, 2)
    colours = itertools.cycle(itertools.permutations(list(COLOURS), 2))
    scenes = (
        Scene(tuple(Square(colour, at) for colour, at in zip(of, pair, strict=True)))
        for pair, of in zip(places, colours, strict=False)
    )
    with divided_servers(MODEL, folder, least_tokens=16) as servers:
        found = Divided(*servers, scenes)

        def is_divided() -> bool:
            found.ask(found.front, chat(as_data_url(next(scenes))))
            return found.transfers > 0

        wait_until(is_divided, "both workers are found")
        yield found


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Divided]:
    with servers_of_pictures(tmp_path_factory.mktemp("divided")) as found:
        yield found


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streams", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_the_answering_server_names_what_a_picture_shows_and_encodes_none(
    divided: Divided, api: Api, streams: bool
) -> None:
    right = 0
    for scene in itertools.islice(divided.scenes, 3):
        before, encoded, asked = divided.transfers, divided.encoded, api(as_data_url(scene))
        alone = whole_text(divided.ask(divided.producer, asked).json())  # by one engine
        answer = divided.ask(divided.front, api(as_data_url(scene), stream=streams))
        text = streamed_text(answer.text) if streams else whole_text(answer.json())
        assert text == alone
        right += text == describe(scene)
        wait_until(lambda before=before: divided.transfers == before + 1, "its pages came")
        assert divided.encoded == encoded
    assert right >= 2


@pytest.mark.parametrize("params", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_legs_of_a_router_move_pages_of_pictures(divided: Divided, params: bool) -> None:
    """params: the prefill leg has kv_transfer_params, which one router does not send."""
    scene, encoded = next(divided.scenes), divided.encoded
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    url, own = as_data_url(scene), {"kv_transfer_params": asked} if params else {}
    first_alone = divided.ask(divided.producer, chat(url)).json()
    first = divided.ask(divided.producer, chat(url, max_tokens=1, stream=False, **own)).json()
    second = divided.ask(
        divided.consumer, chat(url, kv_transfer_params=first["kv_transfer_params"])
    )
    assert second.headers[_HEADER].startswith("transferred;")
    assert whole_text(second.json()) == whole_text(first_alone)
    assert divided.encoded == encoded
    # The ticket of one picture has no pages for another one.
    scene = next(divided.scenes)
    first = divided.ask(divided.producer, chat(url, max_tokens=1, stream=False, **own)).json()
    other = divided.ask(
        divided.consumer,
        chat(as_data_url(scene), kv_transfer_params=first["kv_transfer_params"]),
    )
    assert other.headers[_HEADER] == "recomputed;reason=missing"
    alone = divided.ask(divided.producer, chat(as_data_url(scene))).json()
    assert whole_text(other.json()) == whole_text(alone)
    assert divided.encoded == encoded + 1


@pytest.mark.whole
def test_a_producer_that_dies_costs_no_answer_about_a_picture(tmp_path: Path) -> None:
    with servers_of_pictures(tmp_path) as divided:
        urls = [as_data_url(next(divided.scenes)) for _ in APIS]
        alone = [
            whole_text(divided.ask(divided.producer, api(url)).json())
            for api, url in zip(APIS, urls, strict=True)
        ]
        divided.producer.kill_without_notice()
        for api, url, expected in zip(APIS, urls, alone, strict=True):
            assert whole_text(divided.ask(divided.front, api(url)).json()) == expected
