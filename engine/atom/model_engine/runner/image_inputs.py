"""ImageInputs: encodes images, and gives a step's tokens their outputs and their positions.

An image's outputs go to rows of the encoder's buffer that the scheduler chose; a step gathers them
by index. Where tokens have positions of time, height and width, a prompt with images has a table of
them on the host until its row is replaced. Owned by StepRunner, of models that read images.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import ImageEncode, NewRow, ScheduledBatch, StepImages
from atom.model_engine.sequence_images import rope_shifts
from atom.models.vision.encoder import ImageEncoder
from atom.utils.device import Device, upload, upload_together
from atom.utils.forward_context import ImageTokens


@dataclass(slots=True)
class Encoded:
    """Images that a step has encoded. finite: of each, on the device; began, ended: events of a
    GPU; seconds: on the CPU."""

    digests: list[bytes] = field(default_factory=list)
    finite: list[torch.Tensor] = field(default_factory=list)
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
    seconds: float = 0.0

    def bad(self) -> tuple[bytes, ...]:
        """Return the images whose outputs are not finite; waits for the device."""
        answers = torch.stack(self.finite).tolist() if self.finite else []
        return tuple(digest for digest, good in zip(self.digests, answers, strict=True) if not good)

    def took(self) -> float:
        """Return the seconds that encoding took, once the device is done."""
        if self.events is None:
            return self.seconds
        began, ended = self.events
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1000.0


class ImageInputs:
    def __init__(self, encoder: ImageEncoder, device: Device) -> None:
        self._encoder = encoder
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
        """Encode a step's images, one after the other; None if there are none."""
        if not images.encodes:
            return None
        done, events = Encoded(), None
        if self._device.is_gpu:
            events = _event(), _event()
            events[0].record()
        began = time.perf_counter()
        for each in images.encodes:
            done.finite.append(self._encode(each))
            done.digests.append(each.digest)
        if events is not None:
            events[1].record()
        done.events, done.seconds = events, time.perf_counter() - began
        return done

    def encode_largest(self, max_model_len: int) -> None:
        """Encode an image of zeros with as many tokens as a prompt may have."""
        facts = self._encoder.facts
        tokens = facts.largest_tokens(max_model_len)
        grid = (1, facts.patches.merge, tokens * facts.patches.merge)
        pixels = np.zeros(facts.pixel_shape(grid), dtype=np.float32)
        self._encode(ImageEncode(b"", grid, np.arange(tokens, dtype=np.int32), pixels))

    def _encode(self, image: ImageEncode) -> torch.Tensor:
        device = self._device.torch_device
        rows = upload(image.rows.astype(np.int64), device)
        pixels = upload(np.require(image.pixels, requirements="W"), device)
        return self._encoder.keep(rows, pixels, image.grid)

    def tokens(self, batch: ScheduledBatch) -> ImageTokens | None:
        """Return the step's tokens that images fill, with their outputs; None if there are none."""
        if not batch.images.rows:
            return None
        counts = batch.num_scheduled_tokens
        starts = dict(
            zip(
                batch.slots.tolist(),
                (np.cumsum(counts) - counts - batch.num_computed_tokens).tolist(),
                strict=True,
            )
        )
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


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
