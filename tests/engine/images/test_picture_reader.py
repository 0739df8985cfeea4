"""Files are decoded in processes that end whatever the files do, and their neighbours go on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from atom.errors import ConfigError, EngineDeadError
from atom.images.errors import ImageError
from atom.images.item import ImageItem
from atom.images.picture_messages import PictureSetup
from atom.images.picture_reader import PictureLimits, PictureReader
from atom.images.processing.families import image_processor
from tests.support.hostile_pictures import bombs, damaged
from tests.support.pictures import drawn_picture, file_of

_CONFIG: dict[str, object] = {"model_type": "mistral3", "vision_config": {"patch_size": 14}}
_SOME = PictureLimits(most_tokens=10_000)
_GOOD = file_of(Image.new("RGB", (60, 40), "blue"))


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[PictureReader]:
    """A reader with the least of memory and time that a picture of some megapixels takes."""
    setup = PictureSetup(str(tmp_path), _CONFIG, limit_memory_bytes=200 << 20, limit_cpu_seconds=1)
    made = PictureReader(setup)
    yield made
    made.close()


async def test_an_item_equals_that_of_the_processor(reader: PictureReader, tmp_path: Path) -> None:
    processor = image_processor(tmp_path, _CONFIG)
    assert processor is not None
    picture = drawn_picture(random.Random(3))
    item = await reader.read("client", file_of(picture), _SOME)
    expected = processor.process(picture)
    assert item == expected
    assert (item.grid, item.tokens) == (expected.grid, expected.tokens)
    assert np.array_equal(item.pixels, expected.pixels)


async def test_equal_pictures_in_other_files_have_one_digest(reader: PictureReader) -> None:
    picture = drawn_picture(random.Random(4))
    png = await reader.read("a", file_of(picture), _SOME)
    webp = await reader.read("b", file_of(picture, "WEBP", lossless=True), _SOME)
    changed = picture.copy()
    changed.putpixel((0, 0), (1, 2, 3))
    other = await reader.read("a", file_of(changed), _SOME)
    assert png.digest == webp.digest != other.digest


@pytest.mark.parametrize("bomb", [pytest.param(each, id=each[0]) for each in bombs()])
async def test_bombs_are_refused_within_the_bounds(
    reader: PictureReader, bomb: tuple[str, bytes]
) -> None:
    """The reason is the file's, and not that its process met a bound."""
    with pytest.raises(ImageError) as refused:
        await reader.read("client", bomb[1], _SOME)
    assert "takes more than" not in str(refused.value), refused.value
    await reader.read("client", _GOOD, _SOME)


async def test_a_picture_that_meets_a_bound_is_refused(reader: PictureReader) -> None:
    large = file_of(Image.new("RGBA", (8000, 4900), "blue"), compress_level=1)
    with pytest.raises(ImageError, match="takes more than 1 s or 200 MiB; send a smaller picture"):
        await reader.read("client", large, _SOME)
    assert (await reader.read("client", _GOOD, _SOME)).tokens > 0


async def test_damaged_files_are_read_or_refused(reader: PictureReader) -> None:
    await _read_damaged(reader, range(60))


@pytest.mark.slow
async def test_many_damaged_files_are_read_or_refused(reader: PictureReader) -> None:
    await _read_damaged(reader, range(60, 2000))


async def _read_damaged(reader: PictureReader, seeds: range) -> None:
    read = await asyncio.gather(
        *(reader.read(f"{seed % 3}", damaged(random.Random(seed))[1], _SOME) for seed in seeds),
        return_exceptions=True,
    )
    for seed, result in zip(seeds, read, strict=True):
        assert isinstance(result, ImageItem | ImageError), (seed, result)
        assert "takes more than" not in str(result), seed
    assert {type(result) for result in read} == {ImageItem, ImageError}


async def test_a_picture_of_more_tokens_than_the_context_is_refused(reader: PictureReader) -> None:
    data = file_of(Image.new("RGB", (600, 600)))
    with pytest.raises(ImageError, match=r"has 484 tokens, more than the 483 .*detail \"low\""):
        await reader.read("client", data, PictureLimits(most_tokens=483))
    reduced = await reader.read("client", data, PictureLimits(483, longest_edge=512))
    assert reduced.tokens == 19 * 19


async def test_another_process_follows_one_that_was_killed(reader: PictureReader) -> None:
    await reader.read("client", _GOOD, _SOME)
    server = reader._server._running()
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    assert (await reader.read("client", _GOOD, _SOME)).tokens > 0


async def test_files_that_wait_at_the_end_get_an_error(reader: PictureReader) -> None:
    await reader.prepare()
    reader.close()
    with pytest.raises(EngineDeadError):
        await reader.read("client", _GOOD, _SOME)


async def test_a_checkpoint_that_contradicts_itself_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text('{"patch_size": 16}')
    reader = PictureReader(PictureSetup(str(tmp_path), _CONFIG))
    with pytest.raises(ConfigError, match="patch_size is 16 for images and 14 for the encoder"):
        await reader.prepare()
    reader.close()
