"""A picture in a chat is answered as transformers answers it, from the file to the last token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.support.engine_core.front_half import build_test_config
from tests.support.models.multimodal_checkpoint import make_multimodal_checkpoint
from tests.support.pictures import file_of
from tests.support.server.http_app import serve_model
from tests.support.server.seeing_model import IMAGE, image_part, write_seeing_tokenizer

NEW_TOKENS = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder of a tiny Mistral Small 3, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("seeing")
    return folder, write_checkpoint(folder)


def write_checkpoint(folder: Path) -> Any:
    """Write a tiny Mistral Small 3 with a chat template, and return transformers' model of it."""
    tokenizer = write_seeing_tokenizer(folder)
    image = tokenizer.token_to_id(IMAGE)
    model = make_multimodal_checkpoint(
        folder,
        "mistral3",
        vision={"image_size": 84},
        whole={"image_token_index": image},
        unlikely=(image,),
        vocab_size=tokenizer.get_vocab_size(),
    )
    write_seeing_tokenizer(folder)
    vision, merge = model.config.vision_config, model.config.spatial_merge_size
    sizes = {"patch_size": vision.patch_size, "spatial_merge_size": merge}
    (folder / "processor_config.json").write_text(json.dumps(sizes))
    longest = {"size": {"longest_edge": vision.image_size}}
    (folder / "preprocessor_config.json").write_text(json.dumps(longest))
    return model


def drawn(side: int, colour: str) -> Image.Image:
    picture = Image.linear_gradient("L").convert("RGB").resize((side, side + 9))
    picture.paste(colour, (side // 4, side // 3, side // 2, side - 5))
    return picture


def greedy(model: Any, prompt: list[int], pictures: list[Image.Image]) -> list[int]:
    """Draw the most likely tokens with transformers' own processing."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    config = model.config
    side = config.vision_config.patch_size * config.spatial_merge_size
    processor = PixtralImageProcessorPil(size={"longest_edge": config.vision_config.image_size})
    found = processor(pictures, patch_size=side, return_tensors="pt")
    drawn: list[int] = []
    for _ in range(NEW_TOKENS):
        with torch.inference_mode():
            logits = model(
                input_ids=torch.tensor([[*prompt, *drawn]]),
                pixel_values=found["pixel_values"].float(),
                image_sizes=found["image_sizes"],
                use_cache=False,
            ).logits
        drawn.append(int(logits[0, -1].argmax()))
    return drawn


async def test_chats_with_pictures_equal_transformers(checkpoint: tuple[Path, Any]) -> None:
    folder, model = checkpoint
    pictures = [drawn(50, "red"), drawn(37, "blue")]
    first, second = (image_part(file_of(picture)) for picture in pictures)
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, first]},
        {"role": "assistant", "content": "A square."},
        {"role": "user", "content": [second, {"type": "text", "text": f" And {IMAGE}?"}]},
    ]
    config = build_test_config(folder, max_num_batched_tokens=16, max_num_seqs=4)
    async with serve_model(config) as rig:
        for count, shown in ((1, pictures[:1]), (3, pictures), (3, pictures)):
            answer = await rig.post(
                "/v1/chat/completions",
                messages=turns[:count],
                max_tokens=NEW_TOKENS,
                temperature=0,
                ignore_eos=True,
                return_token_ids=True,
            )
            assert answer.status_code == 200, answer.text
            body = answer.json()
            expected = greedy(model, body["prompt_token_ids"], shown)
            assert body["choices"][0]["token_ids"] == expected
            assert body["usage"]["prompt_tokens_details"]["image_tokens"] > 0
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
