"""Hostile pictures beside a stream of another client: no file is decoded, unpacked or hashed in the
server's loop, and the stream goes on meanwhile."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from atom.images import decoding
from atom.images.picture_reader import PictureReader
from tests.support.engine_core.front_half import build_test_config
from tests.support.hostile_pictures import animation, bombs
from tests.support.pictures import file_of
from tests.support.server.http_app import AppRig, serve_app
from tests.support.server.seeing_model import data_url, image_part, picture, write_seeing_model

CHAT = "/v1/chat/completions"
_SMALL_BYTES = 64 * 1024  # that the loop may handle at once


class _Witness:
    """Records which thread handles how many bytes at once, and how many files are read at once."""

    def __init__(self) -> None:
        self.in_loop: list[tuple[str, int]] = []
        self.most_at_once = self._at_once = 0
        self._loop = threading.get_ident()
        self._lock = threading.Lock()

    def noting(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(data: bytes = b"", *args: Any, **options: Any) -> Any:
            if threading.get_ident() == self._loop and len(data) > _SMALL_BYTES:
                self.in_loop.append((name, len(data)))
            return work(data, *args, **options)

        return noted

    def counting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            with self._lock:
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
            try:
                return work(*args)
            finally:
                with self._lock:
                    self._at_once -= 1

        return counted


async def test_hostile_pictures_leave_the_loop_to_the_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = _Witness()
    monkeypatch.setattr(hashlib, "sha256", witness.noting("sha256", hashlib.sha256))
    monkeypatch.setattr(binascii, "a2b_base64", witness.noting("base64", binascii.a2b_base64))
    monkeypatch.setattr(decoding, "open_picture", witness.noting("open", _never))
    monkeypatch.setattr(PictureReader, "_read", witness.counting(PictureReader._read))
    config = build_test_config(write_seeing_model(tmp_path / "seeing"))
    async with serve_app(config) as rig:
        files = [*(_noise(seed) for seed in range(4)), *(file for _, file in bombs())]
        files += [file[: len(file) // 2] for file in files[:2]] + [animation("GIF")]
        sent = [asyncio.create_task(_ask(rig, data_url(file))) for file in files]
        beside = await rig.events(CHAT, messages=_text("hi"), max_tokens=8)
        assert beside[-1] == "[DONE]"
        assert set(await asyncio.gather(*sent)) <= {200, 400}
        good = await rig.post(CHAT, messages=[_with(image_part(picture(2, 2)))], max_tokens=1)
        assert good.status_code == 200
    assert witness.in_loop == []
    assert 1 <= witness.most_at_once <= 2


def _never(data: bytes) -> Any:
    raise AssertionError("the server itself opens a picture")


def _noise(seed: int) -> bytes:
    """Draw a picture whose file is large."""
    pixels = np.random.default_rng(seed).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    return file_of(Image.fromarray(pixels))


def _text(words: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": words}]


def _with(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


async def _ask(rig: AppRig, url: str) -> int:
    messages = [_with({"type": "image_url", "image_url": {"url": url}})]
    return (await rig.post(CHAT, messages=messages, max_tokens=1)).status_code
