"""ImageInputs: encodes images, and gives a step's tokens their outputs and their positions.

An image's outputs go to rows of the encoder's buffer that the scheduler chose; a step gathers them
by index. Where tokens have positions of time, height and width, a prompt with images has a table of
them on the host until its row is replaced. Owned by StepRunner, of models that read images.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import ImageEncode, NewRow, ScheduledBatch, StepImages
from atom.model_engine.sequence_images import rope_shifts, runs_of
from atom.models.vision.encoder import ImageEncoder
from atom.utils.device import Device, upload, upload_together
from atom.utils.forward_context import ImageTokens


@dataclass(slots=True)
class Encoded:
    """Images that a step has encoded. finite: of each, on the device, a group of images at a time;
    began, ended: events of a GPU; seconds: on the CPU."""

    digests: list[bytes] = field(default_factory=list)
    finite: list[torch.Tensor] = field(default_factory=list)
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
    seconds: float = 0.0

    def bad(self) -> tuple[bytes, ...]:
        """Return the images whose outputs are not finite; waits for the device."""
        answers = torch.cat(self.finite).tolist() if self.finite else []
        return tuple(digest for digest, good in zip(self.digests, answers, strict=True) if not good)

    def took(self) -> float:
        """Return the seconds that encoding took, once the device is done."""
        if self.events is None:
            return self.seconds
        began, ended = self.events
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1000.0


class ImageInputs:
    def __init__(self, encoder: ImageEncoder, device: Device, max_model_len: int) -> None:
        self._encoder = encoder
        self._max_model_len = max_model_len
        self._most_tokens = encoder.facts.largest_tokens(max_model_len)
        self._device = device
        self._shifts: dict[int, NDArray[np.int32]] = {}  # by slot, of prompts with images

    # ---- rows ---------------------------------------------------------------------------------

    def enter(self, rows: Sequence[NewRow]) -> None:
        """Take the places of the images of rows that take a slot."""
        for row in rows:
            self._shifts.pop(row.slot, None)
            if row.images:
                self._shifts[row.slot] = rope_shifts(row.images)

    def runs_eagerly(self, batch: ScheduledBatch) -> bool:
        """Return whether a captured graph cannot run the batch: some token is an image's, or comes
        before the end of its prompt's last image."""
        return bool(batch.images.rows) or any(True for _ in self._prompts(batch))

    def shifts(self, batch: ScheduledBatch, deltas: NDArray[Any]) -> NDArray[Any]:
        """Return the shifts [T] or [3, T] of the tokens' rotary positions. deltas [T]: those of
        rows whose prompts are computed."""
        starts = np.cumsum(batch.num_scheduled_tokens) - batch.num_scheduled_tokens
        found = None
        for row, table in self._prompts(batch):
            found = np.tile(deltas, (3, 1)) if found is None else found
            first, end = int(batch.num_computed_tokens[row]), int(batch.context_lens[row])
            part = table[:, first:end]
            at = int(starts[row])
            found[:, at : at + part.shape[1]] = part
        return deltas if found is None else found

    def last_seen(
        self, batch: ScheduledBatch, positions: NDArray[np.int64]
    ) -> NDArray[np.int32] | None:
        """Return, of each of the step's tokens [T] at these positions, the position of the last
        token that it attends to; None if none attends to a later one."""
        if not batch.images.rows or not self._encoder.facts.sees_ahead:
            return None
        found, starts = positions.astype(np.int32), _first_tokens(batch)
        for each in batch.images.rows:
            for first, end in runs_of(each.positions):
                found[first + starts[each.slot] : end + starts[each.slot]] = end - 1
        return found

    def _prompts(self, batch: ScheduledBatch) -> Sequence[tuple[int, NDArray[np.int32]]]:
        """Return the chunks of prompts that have tokens before the end of their last image, with
        the shifts of these prompts."""
        if not self._shifts:
            return ()
        found = []
        for row in range(batch.num_decodes, len(batch.slots)):
            table = self._shifts.get(int(batch.slots[row]))
            if table is not None and int(batch.num_computed_tokens[row]) < table.shape[1]:
                found.append((row, table))
        return found

    # ---- images -------------------------------------------------------------------------------

    def encode(self, images: StepImages) -> Encoded | None:
        """Encode a step's images, as many at once as the largest image has tokens; None if there
        are none."""
        if not images.encodes:
            return None
        done, events = Encoded(), None
        if self._device.is_gpu:
            events = _event(), _event()
            events[0].record()
        began = time.perf_counter()
        for together in _groups(images.encodes, self._most_tokens):
            done.finite.append(self._encode(together))
            done.digests.extend(each.digest for each in together)
        if events is not None:
            events[1].record()
        done.events, done.seconds = events, time.perf_counter() - began
        return done

    def encode_largest(self) -> None:
        """Encode an image of zeros with as many tokens as a prompt may have."""
        facts = self._encoder.facts
        grid = facts.largest_grid(self._max_model_len)
        pixels = np.zeros(facts.pixel_shape(grid), dtype=np.float32)
        rows = np.arange(facts.image_tokens(grid), dtype=np.int32)
        self._encode([ImageEncode(b"", grid, rows, pixels)])

    def _encode(self, images: Sequence[ImageEncode]) -> torch.Tensor:
        device = self._device.torch_device
        rows = np.concatenate([image.rows for image in images]).astype(np.int64)
        pixels = [self._pixels(image.pixels) for image in images]
        grids = [image.grid for image in images]
        return self._encoder.keep(upload(rows, device), pixels, grids)

    def _pixels(self, pixels: NDArray[np.float32]) -> torch.Tensor:
        """Upload pixels, converted to the encoder's type while they are copied to pinned memory."""
        source = _read_only(pixels)
        if not self._device.is_gpu:
            return source
        host = torch.empty(source.shape, dtype=self._encoder.pixel_type, pin_memory=True)
        return host.copy_(source).to(self._device.torch_device, non_blocking=True)

    def tokens(self, batch: ScheduledBatch) -> ImageTokens | None:
        """Return the step's tokens that images fill, with their outputs; None if there are none."""
        if not batch.images.rows:
            return None
        starts = _first_tokens(batch)
        sent = upload_together(
            {
                "tokens": np.concatenate(
                    [
                        each.positions.astype(np.int64) + starts[each.slot]
                        for each in batch.images.rows
                    ]
                ),
                "rows": np.concatenate([each.rows.astype(np.int64) for each in batch.images.rows]),
            },
            self._device.torch_device,
        )
        return ImageTokens(sent["tokens"], self._encoder.outputs[sent["rows"]])


def _read_only(pixels: NDArray[np.float32]) -> torch.Tensor:
    """Return pixels as a tensor of the same memory, to which no encoder writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch cannot mark a tensor as one that is not written
        return torch.from_numpy(pixels)


def _first_tokens(batch: ScheduledBatch) -> dict[int, int]:
    """Return, by slot, the difference of a token's index in the step from its position."""
    counts = batch.num_scheduled_tokens
    firsts = np.cumsum(counts) - counts - batch.num_computed_tokens
    return dict(zip(batch.slots.tolist(), firsts.tolist(), strict=True))


def _groups(images: Sequence[ImageEncode], most_tokens: int) -> Iterator[list[ImageEncode]]:
    """Yield images to encode at once, of at most so many tokens unless one has more. Those of equal
    grids are neighbours."""
    group: list[ImageEncode] = []
    for image in sorted(images, key=lambda each: each.grid):
        if group and len(image.rows) + sum(len(each.rows) for each in group) > most_tokens:
            yield group
            group = []
        group.append(image)
    if group:
        yield group


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
