"""Names of blocks with images, and the positions of image tokens, for drawn prompts."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
import torch
import transformers

from atom.model_engine.request_image import RequestImage
from atom.model_engine.sequence_images import SequenceImages, rope_shifts
from atom.sizing.vision.qwen3_vl import QwenVisionFacts, qwen3_vl

IMAGE = 7
MERGE = 2
CONFIG = {"vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2,
                            "deepstack_visual_indexes": []}}  # fmt: skip
VISION: QwenVisionFacts = qwen3_vl(CONFIG, {"hidden_size": 64, "num_hidden_layers": 2})


def drawn(seed: int) -> tuple[list[int], list[RequestImage]]:
    """Draw a prompt of texts and images, with a token between images."""
    draw, tokens, images = random.Random(seed), list[int](), list[RequestImage]()
    for number in range(draw.randint(1, 4)):
        tokens += [draw.randrange(100, 200) for _ in range(draw.randint(1, 30))]
        height, width = draw.randint(1, 6), draw.randint(1, 6)
        images.append(
            RequestImage(
                digest=bytes([seed, number]) * 16,
                offset=len(tokens),
                filled=b"\1" * (height * width),
                grid=(1, height * MERGE, width * MERGE),
                shape=(1,),
                pixels=memoryview(bytes(4)),
            )
        )
        tokens += [IMAGE] * (height * width)
    return tokens + [draw.randrange(100, 200) for _ in range(draw.randint(1, 20))], images


@pytest.mark.parametrize("seed", range(30))
def test_positions_equal_transformers(seed: int) -> None:
    tokens, images = drawn(seed)
    mine = SequenceImages(images, VISION)
    shifts = np.full((3, len(tokens)), mine.position_delta)
    table = rope_shifts(mine.spans)
    shifts[:, : table.shape[1]] = table
    config = transformers.Qwen3VLConfig(
        vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64,
                       "deepstack_visual_indexes": []},
        text_config={"hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1,
                     "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 300},
        image_token_id=IMAGE,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.Qwen3VLForConditionalGeneration(config).model
    ids = torch.tensor([tokens])
    positions, deltas = model.get_rope_index(
        ids, (ids == IMAGE).int(), torch.tensor([image.grid for image in images])
    )
    assert (np.arange(len(tokens)) + shifts).tolist() == positions[:, 0].tolist()
    assert mine.position_delta == int(deltas)


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(10))
def test_names_differ_from_the_first_block_of_another_picture_on(seed: int, size: int) -> None:
    tokens, images = drawn(seed)
    changed = random.Random(seed).randrange(len(images))
    others = list(images)
    others[changed] = msgspec.structs.replace(images[changed], digest=bytes(32))
    array = np.array(tokens, np.int32)
    blocks = len(tokens) // size
    first, second = (
        SequenceImages(each, VISION).named(array, 0, size)[: blocks * size].reshape(blocks, size)
        for each in (images, others)
    )
    own, end = images[changed].offset // size, -(-images[changed].end // size)
    for block in range(blocks):
        assert (first[block] == second[block]).all() == (not own <= block < end)
        has_image = any(
            image.offset < (block + 1) * size and image.end > block * size for image in images
        )
        is_text = (first[block] == array[block * size : (block + 1) * size]).all()
        assert is_text == (not has_image)
        assert (first[block] < 0).all() == has_image


@pytest.mark.parametrize("seed", range(10))
def test_names_do_not_depend_on_how_much_is_named_at_once(seed: int) -> None:
    tokens, images = drawn(seed)
    mine, array, size = SequenceImages(images, VISION), np.array(tokens, np.int32), 4
    whole = mine.named(array, 0, size)
    for first in range(0, len(tokens) - size, size):
        part = mine.named(array[first : first + 2 * size], first, size)
        full = len(part) // size * size
        assert part[:full].tolist() == whole[first : first + full].tolist()
