"""ImageSteps: which images a step encodes, and which outputs its tokens take.

An image is encoded in the step whose chunk first needs it, once, however many rows have it. A chunk
ends before an image whose outputs find no room, or that is too much for one step; the row continues
when others have passed theirs. A row holds the outputs of an image until the chunk that has its
last token. Used by Scheduler only, of models that read images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from atom.config_values import SchedulerConfig
from atom.model_engine.batch import (
    ImageEncode,
    ImageRows,
    ScheduledBatch,
    ScheduledBatchOutput,
    StepImages,
)
from atom.model_engine.schedule.batch_builder import Chunk
from atom.model_engine.schedule.images.image_outputs import ImageOutputs
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence as Row
from atom.model_engine.sequence_images import SequenceImage
from atom.sizing.vision.facts import VisionFacts

BAD_IMAGE = (
    "the image encoder's output for an image of the prompt is not finite (NaN or infinite); send "
    "another image, or serve the model in another --dtype"
)


class ImageSteps:
    def __init__(self, rows: RowTable, kept_tokens: int, step_tokens: int) -> None:
        """kept_tokens: of images whose outputs the device keeps; step_tokens: of images that a step
        encodes, unless one has more."""
        self._rows = rows
        self._outputs = ImageOutputs(kept_tokens)
        self._step_tokens = step_tokens
        self._held: dict[int, set[bytes]] = {}  # digests, by slot
        self._encodes: list[ImageEncode] = []
        self._open_bytes = 0  # pixels of all sequences
        self.items_total = self.hits_total = self.failures_total = self.encoded_total = 0
        self.seconds_total = 0.0

    @staticmethod
    def of(
        vision: VisionFacts | None, rows: RowTable, max_model_len: int, config: SchedulerConfig
    ) -> ImageSteps | None:
        """Build the steps of an encoder; None for a model that reads text alone."""
        if vision is None:
            return None
        kept_tokens = vision.kept_tokens(max_model_len)
        return ImageSteps(rows, kept_tokens, config.max_num_batched_tokens)

    # ---- sequences ----------------------------------------------------------------------------

    def arrive(self, sequence: Row) -> None:
        """Count the pixels of a sequence, which it holds to its end: after a preemption its images
        may have to be encoded again."""
        self._open_bytes += _pixel_bytes(sequence)

    def begin(self, sequence: Row) -> None:
        """Count the images of a sequence that takes a slot for the first time."""
        if sequence.images is not None:
            self.items_total += len(sequence.images.images)

    def end(self, sequence: Row) -> None:
        """Count the pixels of a sequence that has ended no more."""
        self._open_bytes -= _pixel_bytes(sequence)

    # ---- steps --------------------------------------------------------------------------------

    def whole(self, slot: int, count: int, room: int) -> int:
        """Return how many of a row's next tokens a step can compute instead of `count`, so that it
        cuts no run of tokens that see each other both ways: up to the end of the run if that are at
        most `room`, else up to its begin."""
        sequence = self._rows.sequence_in(slot)
        if sequence.images is None or count <= 0:
            return count
        computed = int(self._rows.num_computed[slot])
        run = sequence.images.run_around(computed + count)
        if run is None:
            return count
        first, end = run
        return end - computed if end - computed <= room else max(0, first - computed)

    def cut(self, slot: int, count: int) -> int:
        """Return how many of the next `count` tokens of a row can be computed, whose images are
        then kept or about to be encoded."""
        sequence = self._rows.sequence_in(slot)
        if sequence.images is None:
            return count
        computed = int(self._rows.num_computed[slot])
        for image in sequence.images.overlapping(computed, computed + count):
            if not self._has(slot, sequence, image):
                return max(0, image.span.first - computed)
        return count

    def take(self, chunks: Sequence[Chunk]) -> StepImages:
        """Return the images of a step with these chunks, which is about to be built, and let go of
        images that they end."""
        encodes, self._encodes = self._encodes, []
        found = []
        for slot, count in chunks:
            sequence = self._rows.sequence_in(slot)
            if sequence.images is None:
                continue
            first = int(self._rows.num_computed[slot])
            for image in sequence.images.overlapping(first, first + count):
                rows, at = self._outputs.find(image.digest), image.positions
                assert rows is not None, "a chunk ends before an image without outputs"
                within = (at >= first) & (at < first + count)
                if within.any():
                    found.append(ImageRows(slot, at[within], rows[within]))
            self._let_go(sequence, slot, first + count)
        return StepImages(tuple(encodes), tuple(found))

    def leave(self, slot: int) -> None:
        """Let go of the images of a row that leaves its slot."""
        for digest in self._held.pop(slot, ()):
            self._outputs.release(digest)

    def note_encoded(
        self, batch: ScheduledBatch, output: ScheduledBatchOutput, rows: Iterable[Row]
    ) -> list[int]:
        """Count the images that a batch encoded, and forget outputs that are not finite. Returns
        the requests among `rows` that have such an image: their tokens would be nonsense."""
        self.encoded_total += len(batch.images.encodes)
        self.seconds_total += output.encode_seconds
        self.failures_total += len(output.bad_images)
        if not output.bad_images:
            return []
        for digest in output.bad_images:
            self._outputs.forget(digest)
        return [row.id for row in rows if row.images and row.images.has_any(output.bad_images)]

    def forget_all(self) -> None:
        """Encode every image again at its next use: no rows run."""
        assert not self._held, "no row runs"
        self._encodes = []
        self._outputs.forget_all()

    def totals(self) -> dict[str, Any]:
        """Return the running totals, by the names of StatsBody's fields."""
        return {
            "image_items_total": self.items_total,
            "image_hits_total": self.hits_total,
            "image_failures_total": self.failures_total,
            "images_encoded_total": self.encoded_total,
            "encoder_seconds_total": self.seconds_total,
            "image_bytes": self._open_bytes,
        }

    def _has(self, slot: int, sequence: Row, image: SequenceImage) -> bool:
        """Hold an image's outputs for a row, and let it be encoded if they are not kept. Returns
        False if there is no room."""
        held = self._held.setdefault(slot, set())
        if image.digest in held:
            return True
        if self._outputs.find(image.digest) is None:
            if not self._encode(sequence, image):
                if not held:
                    del self._held[slot]
                return False
        else:
            self.hits_total += 1
        held.add(image.digest)
        self._outputs.hold(image.digest)
        return True

    def _encode(self, sequence: Row, image: SequenceImage) -> bool:
        tokens = len(image.positions)
        asked = sum(len(each.rows) for each in self._encodes)
        if self._encodes and asked + tokens > self._step_tokens:
            return False
        rows = self._outputs.reserve(image.digest, tokens)
        if rows is None:
            return False
        self._encodes.append(ImageEncode(image.digest, image.grid, rows, image.pixels))
        return True

    def _let_go(self, sequence: Row, slot: int, computed: int) -> None:
        """Release the images whose tokens are all computed, unless the prompt has them again."""
        held = self._held.get(slot)
        if not held:
            return
        images = () if sequence.images is None else sequence.images.images
        wanted = {image.digest for image in images if image.span.end > computed}
        for digest in held - wanted:
            self._outputs.release(digest)
        held &= wanted
        if not held:
            del self._held[slot]


def _pixel_bytes(sequence: Row) -> int:
    return 0 if sequence.images is None else sequence.images.pixel_bytes
