"""Of an animation the first frame alone is decoded, and a file in countless parts is refused: work
is counted, and not timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL.GifImagePlugin import GifImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from atom.images import counted_file
from atom.images.counted_file import MOST_COPIED_BYTES, MOST_PIECES, CountedFile
from atom.images.decoding import decoded, open_picture, upright_size
from atom.images.errors import ImageError
from atom.images.picture_messages import PictureSetup
from atom.images.picture_reader import PictureLimits, PictureReader
from tests.support.engine_core.front_half import build_test_config
from tests.support.hostile_pictures import crumbled, long_animation
from tests.support.server.http_app import serve_app
from tests.support.server.seeing_model import image_part, picture, write_seeing_model

FRAMES = 4_000
_BUFFER = 64 * 1024  # that a decoder may read at once
CRUMBLED = dict(crumbled())
OF_PIXELS = ("png of single bytes",)  # in small parts behind the header


class _Work:
    """Counts frames that are sought or decoded, pieces of files, and their bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[int] = []
        self.pieces = self.size_bytes = 0
        seek = {kind: kind._seek for kind in (GifImageFile, PngImageFile)}
        for kind, work in seek.items():

            def sought(file: object, frame: int, *args: bool, work: object = work) -> None:
                self.frames.append(frame)
                work(file, frame, *args)  # type: ignore[operator]

            monkeypatch.setattr(kind, "_seek", sought)
        take, read = WebPImageFile._get_next, CountedFile.read

        def taken(file: WebPImageFile) -> tuple[bytes, int, int]:
            self.frames.append(len(self.frames))
            return take(file)

        def counted(file: CountedFile, size: int | None = -1, /) -> bytes:
            found = read(file, size)
            self.pieces += 1
            self.size_bytes += len(found)
            return found

        monkeypatch.setattr(WebPImageFile, "_get_next", taken)
        monkeypatch.setattr(CountedFile, "read", counted)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_the_first_of_thousands_of_frames_is_decoded_and_no_other(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, work = long_animation(kind, FRAMES), _Work(monkeypatch)
    opened = open_picture(file)
    assert upright_size(opened) == (30, 40)
    shown = np.asarray(decoded(opened))
    assert (shown == (255, 0, 0)).all()
    assert set(work.frames) == {0}
    assert work.pieces < 100
    assert len(file) > 2 * _BUFFER
    assert kind == "WEBP" or work.size_bytes <= _BUFFER + 2048


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_a_frame_more_is_no_more_work(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = []
    for count in (2_000, FRAMES):
        with monkeypatch.context() as patched:
            work = _Work(patched)
            decoded(open_picture(long_animation(kind, count)))
            pieces.append((work.pieces, len(work.frames)))
    assert pieces[0] == pieces[1]


@pytest.mark.parametrize("name", CRUMBLED)
def test_a_file_in_countless_parts_is_refused_before_they_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _Work(monkeypatch)
    with pytest.raises(ImageError, match="too many small parts"):
        decoded(open_picture(CRUMBLED[name]))
    assert work.pieces <= MOST_PIECES + 100
    # If a decoder joins the pieces of a header one by one, it copies no more than that.
    assert name in OF_PIXELS or work.pieces * work.size_bytes / 2 <= 1.1 * MOST_COPIED_BYTES


def test_the_bounds_leave_room_for_large_pictures_in_small_parts() -> None:
    """A PNG of 20 MiB in chunks of a kilobyte, which costs a decoder four reads each."""
    assert counted_file.MOST_PIECES > 4 * 20 * 1024


async def test_it_is_refused_by_the_part_of_the_request(tmp_path: Path) -> None:
    config = build_test_config(write_seeing_model(tmp_path / "seeing"))
    parts = [image_part(picture(1, 1)), image_part(CRUMBLED["gif of comments"])]
    async with serve_app(config) as rig:
        refused = await rig.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=1
        )
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["code"] == "invalid_image"
    assert error["message"].startswith("messages[0].content[1]: the file has too many small parts")


async def test_a_process_reads_animations_within_a_second(tmp_path: Path) -> None:
    """The kernel ends a process that computes for longer."""
    config: dict[str, object] = {"model_type": "mistral3", "vision_config": {"patch_size": 14}}
    setup = PictureSetup(str(tmp_path), config, limit_memory_bytes=200 << 20, limit_cpu_seconds=1)
    reader = PictureReader(setup)
    try:
        for kind in ("GIF", "PNG", "WEBP"):
            item = await reader.read("", long_animation(kind, FRAMES), PictureLimits(100))
            assert item.tokens == 4
    finally:
        reader.close()
