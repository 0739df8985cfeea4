"""Checks of a request's images: that they fit its prompt and the model's encoder.

A core trusts no sender: an image of another size than its prompt has places for would shift every
later token. Torch-free; used by the engine's front and by RequestBounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from atom.config import ModelConfig
from atom.errors import RequestError
from atom.model_engine.request_image import RequestImage, image_bytes
from atom.sizing.vision.facts import VisionFacts

MOST_IMAGE_BYTES = 192 * 2**20  # of one request, as they travel
_DIGEST_BYTES = 32


def check_images(images: Sequence[RequestImage], num_tokens: int, model: ModelConfig) -> None:
    """Raise `RequestError` for images that do not fit the prompt of `num_tokens` tokens or the
    model's encoder."""
    if not images:
        return
    vision = model.facts.vision
    if vision is None:
        raise _refused(
            f"{model.served_name} is served as a model of text; leave the images out, or use a "
            "server of a model that reads images, without --language-model-only and --reproducible"
        )
    if len(images) > model.max_images:
        raise _refused(
            f"the prompt has {len(images)} images, and this server takes {model.max_images}; send "
            "fewer, or start it with a higher --limit-mm-per-prompt"
        )
    if image_bytes(images) > MOST_IMAGE_BYTES:
        raise _refused(
            f"the images have {image_bytes(images) // 2**20} MiB of pixels for the engine, which "
            f"takes {MOST_IMAGE_BYTES // 2**20} MiB at once; send fewer or smaller ones"
        )
    end = 0
    for index, image in enumerate(images):
        if image.offset < end or image.end > num_tokens:
            raise _refused(
                f"image {index} is at tokens {image.offset} to {image.end - 1} of a prompt of "
                f"{num_tokens}, or in the place of another image"
            )
        _check_image(index, image, vision, model)
        end = image.end


def _check_image(index: int, image: RequestImage, vision: VisionFacts, model: ModelConfig) -> None:
    if not vision.takes(image.grid):
        raise _refused(f"image {index} has the grid {image.grid}; the encoder reads no such images")
    tokens, most = vision.image_tokens(image.grid), vision.largest_tokens(model.max_model_len)
    if tokens > most:
        raise _refused(f"image {index} has {tokens} tokens; the largest image has {most}")
    marks = image.filled
    if len(image.digest) != _DIGEST_BYTES or marks.count(0) + marks.count(1) != len(marks):
        raise _refused(f"image {index} has a malformed digest or mask")
    if vision.has_axes and 0 in marks:
        raise _refused(f"image {index} has other tokens between its own, which have no places")
    if image.num_tokens != tokens or marks[:1] != b"\1" or marks[-1:] != b"\1":
        raise _refused(
            f"image {index} has {tokens} tokens by its grid and fills {image.num_tokens} of the "
            "prompt's, which must begin and end its span"
        )
    run = max(map(len, marks.split(b"\0")))
    if vision.sees_ahead and run > model.max_image_run:
        raise _refused(
            f"image {index} has {run} tokens that a step computes together, and a step of this "
            f"server has at most {model.max_image_run} (--max-num-batched-tokens)"
        )
    shape = vision.pixel_shape(image.grid)
    if image.shape != shape or len(image.pixels) != 4 * math.prod(shape):
        raise _refused(
            f"image {index} has pixels of the shape {list(image.shape)}; its grid calls for "
            f"{list(shape)}"
        )


def _refused(message: str) -> RequestError:
    return RequestError(message, param="images")
