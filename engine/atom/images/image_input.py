"""ImageInput: the images of one server's requests, from URLs to places in prompts.

Composes where files come from, the processes that decode them, and the tokens of the model's
family. The images of a request are read at once, each in its client's turn. An image that came
before is not decoded again: agents send every picture of a conversation with every turn.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex

from atom.errors import RequestError
from atom.images.errors import ImageError
from atom.images.fetching import MediaSource
from atom.images.item import ImageItem
from atom.images.picture_reader import PictureLimits, PictureReader
from atom.images.placement import ImagePlacer

INVALID_IMAGE = "invalid_image"
LOW_DETAIL_EDGE = 512  # OpenAI's, in pixels
_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class AskedImage:
    """An image of a request. place: of its part, for errors; low: its detail is low, so that it is
    reduced before it is processed."""

    url: str
    place: str
    low: bool = False


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """The bounds of a prompt. most_images: in one prompt; most_tokens: of one image."""

    most_images: int
    most_tokens: int


class ImageInput:
    """Reads and places the images of one server, on an event loop. mark: the text that the chat
    template writes for an image; no client knows it."""

    def __init__(
        self, placer: ImagePlacer, reader: PictureReader, source: MediaSource, bounds: ImageBounds
    ) -> None:
        self.placer = placer
        self.mark = f"image{token_hex(16)}"
        self._reader = reader
        self._source = source
        self._bounds = bounds
        self._known = _KnownItems(_CACHE_BYTES)

    async def prepare(self) -> None:
        """Start the processes. Raises `ConfigError`."""
        await self._reader.prepare()

    def close(self) -> None:
        """End the processes."""
        self._reader.close()

    def check_marks(self, text: str, count: int) -> None:
        """Raise `RequestError` if a rendered conversation does not show each of its images."""
        shown = text.count(self.mark)
        if shown != count:
            raise RequestError(
                f"the model's chat template shows {shown} of the {count} images of these messages; "
                "send images in messages of the user, or pass another template with "
                "--chat-template",
                param="messages",
            )

    async def read(self, client: str, asked: Sequence[AskedImage]) -> tuple[ImageItem, ...]:
        """Fetch, decode and process images. Raises `RequestError` that names the part at fault."""
        if len(asked) > self._bounds.most_images:
            raise RequestError(
                f"messages: {len(asked)} images are more than the {self._bounds.most_images} that "
                "this server takes in a prompt (--limit-mm-per-prompt); send fewer",
                param="messages",
                code="too_many_images",
            )
        reading = [asyncio.create_task(self._one(client, image)) for image in asked]
        try:
            return tuple(await asyncio.gather(*reading))
        finally:
            for task in reading:
                task.cancel()

    async def _one(self, client: str, image: AskedImage) -> ImageItem:
        limits = PictureLimits(self._bounds.most_tokens, LOW_DETAIL_EDGE if image.low else 0)
        try:
            # The text of a data URL names its file, so a known picture is not unpacked again.
            is_data = image.url[:5].lower() == "data:"
            named = (
                image.url.encode("utf-8", "surrogatepass")
                if is_data
                else await self._source.fetch(image.url)
            )
            key = is_data, hashlib.sha256(named).digest(), limits
            item = self._known.get(key)
            if item is None:
                file = await self._source.fetch(image.url) if is_data else named
                item = await self._reader.read(client, file, limits)
                self._known.put(key, item)
        except ImageError as error:
            raise RequestError(
                f"{image.place}: {error}", param="messages", code=INVALID_IMAGE
            ) from error
        return item


_Key = tuple[bool, bytes, PictureLimits]  # of a data URL; digest of its text, or of the file


class _KnownItems:
    """Items by their files, least recently used ones dropped beyond a bound of memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._items: OrderedDict[_Key, ImageItem] = OrderedDict()

    def get(self, key: _Key) -> ImageItem | None:
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def put(self, key: _Key, item: ImageItem) -> None:
        if key in self._items:
            return
        self._items[key] = item
        self._held_bytes += item.pixels.nbytes
        while self._held_bytes > self._most_bytes:
            _, dropped = self._items.popitem(last=False)
            self._held_bytes -= dropped.pixels.nbytes
