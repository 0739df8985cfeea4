"""ImageInput: the images of one server's requests, from URLs to places in prompts.

Composes where files come from, the processes that decode them, and the tokens of the model's
family. The images of a request are read at once, each in its client's turn, and once there is
memory for all of them. An image that came before is not decoded again: agents send every picture of
a conversation with every turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeVar

from atom.errors import RequestError
from atom.images.errors import ImageError
from atom.images.fetching import MediaSource, beside
from atom.images.image_memory import TOO_MANY, ImageMemory, ImageShare
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
    """The bounds of a prompt. most_images: in one prompt; most_tokens: of one image; image_bytes,
    prompt_bytes: most pixels of one image, and of a prompt's images together. memory_bytes: of the
    images of all open requests."""

    most_images: int
    most_tokens: int
    image_bytes: int
    prompt_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Found:
    """An image that has been looked for. file: None for one that is known, or in its data URL."""

    asked: AskedImage
    key: _Key
    item: ImageItem | None
    file: bytes | None


class ImageInput:
    """Reads and places the images of one server, on an event loop. mark: the text that the chat
    template writes for an image; no client knows it. memory: of the images of open requests.
    admit: refuses a number of requests of a client, before their images are read; set by the
    engine, as timeout_seconds, the most of a request's time."""

    admit: Callable[[int, str], None] | None = None
    timeout_seconds: float | None = None

    def __init__(
        self, placer: ImagePlacer, reader: PictureReader, source: MediaSource, bounds: ImageBounds
    ) -> None:
        self.placer = placer
        self.mark = f"image{token_hex(16)}"
        self._reader = reader
        self._source = source
        self._bounds = bounds
        self.memory = ImageMemory(bounds.memory_bytes)
        self._known = _KnownItems(_CACHE_BYTES)

    async def prepare(self) -> None:
        """Start the processes. Raises `ConfigError`."""
        await self._reader.prepare()

    def close(self) -> None:
        """End the processes."""
        self.memory.close()
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

    async def read(self, share: ImageShare, asked: Sequence[AskedImage]) -> tuple[ImageItem, ...]:
        """Fetch, decode and process images, which `share` then holds the memory of. Raises
        `RequestError` that names the part at fault."""
        if len(asked) > self._bounds.most_images:
            raise RequestError(
                f"messages: {len(asked)} images are more than the {self._bounds.most_images} that "
                "this server takes in a prompt (--limit-mm-per-prompt); send fewer",
                param="messages",
                code="too_many_images",
            )
        found = await _all([self._find(image) for image in asked])
        most = self._bounds.image_bytes
        expected = sum(most if each.item is None else each.item.pixels.nbytes for each in found)
        await share.reserve(min(expected, self._bounds.prompt_bytes))
        read = _ReadSoFar(self._bounds.prompt_bytes)
        items = await _all([self._one(share.group, each, read) for each in found])
        share.settle(read.size_bytes)
        return tuple(items)

    async def _find(self, image: AskedImage) -> _Found:
        """Name an image by its file, which is fetched unless it is in the URL."""
        limits = PictureLimits(self._bounds.most_tokens, LOW_DETAIL_EDGE if image.low else 0)
        # The text of a data URL names its file, so a known picture is not unpacked again.
        file: bytes | None = None
        if image.url[:5].lower() == "data:":
            digest = await beside(len(image.url), _digest_of_text, image.url)
        else:
            with _placed(image):
                file = await self._source.fetch(image.url)
            digest = await beside(len(file), _digest, file)
        key = file is None, digest, limits
        item = self._known.get(key)
        return _Found(image, key, item, file if item is None else None)

    async def _one(self, client: str, found: _Found, read: _ReadSoFar) -> ImageItem:
        item = found.item or self._known.get(found.key)
        if item is None:
            with _placed(found.asked):
                file = found.file
                if file is None:
                    file = await self._source.fetch(found.asked.url)
                item = await self._reader.read(client, file, found.key[2])
            self._known.put(found.key, item)
        read.add(item)
        return item


_Key = tuple[bool, bytes, PictureLimits]  # of a data URL; digest of its text, or of the file
_Result = TypeVar("_Result")


class _ReadSoFar:
    """Counts the pixels of one prompt's images while they are read."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.size_bytes = 0

    def add(self, item: ImageItem) -> None:
        """Count an image. Raises `RequestError` past the bound."""
        self.size_bytes += item.pixels.nbytes
        if self.size_bytes > self._most_bytes:
            raise RequestError(
                f"the images have more than the {self._most_bytes >> 20} MiB of pixels that this "
                "server takes in a prompt; send fewer or smaller ones",
                param="messages",
                code=TOO_MANY,
            )


def _digest(file: bytes) -> bytes:
    return hashlib.sha256(file).digest()


def _digest_of_text(url: str) -> bytes:
    return _digest(url.encode("utf-8", "surrogatepass"))


async def _all(work: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Do all at once; the first error ends the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


@contextlib.contextmanager
def _placed(image: AskedImage) -> Iterator[None]:
    """Name the part of an image at fault."""
    try:
        yield
    except ImageError as error:
        raise RequestError(
            f"{image.place}: {error}", param="messages", code=INVALID_IMAGE
        ) from error


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
