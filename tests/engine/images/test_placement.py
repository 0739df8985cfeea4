"""Images in the tokens of a prompt: their positions, and clients' words that spell a token."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from atom.errors import ModelError
from atom.images.item import ImageItem, PlacedImage
from atom.images.placement import ImagePlacer
from atom.images.processing.families import image_processor
from atom.images.processing.processor import ImageProcessor
from atom.tokenizer import Tokenizer as AtomTokenizer

_MARK = "\x02picture\x03"
_SPECIAL = {
    "mistral3": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    "qwen3_vl": ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "gemma3": ["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
}
_CONFIGS: dict[str, dict[str, object]] = {
    "mistral3": {"vision_config": {"patch_size": 14}, "spatial_merge_size": 2},
    "qwen3_vl": {"vision_config": {"patch_size": 14}},
    "gemma3": {"vision_config": {}, "mm_tokens_per_image": 5},
}


@dataclass(frozen=True)
class _Model:
    processor: ImageProcessor
    tokenizer: AtomTokenizer
    placer: ImagePlacer

    def id_of(self, text: str) -> int:
        found = self.tokenizer.token_id(text)
        assert found is not None
        return found


@pytest.fixture(scope="module", params=list(_SPECIAL))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Model:
    folder = tmp_path_factory.mktemp(request.param)
    _tokenizer(_SPECIAL[request.param]).save(str(folder / "tokenizer.json"))
    config = {"model_type": request.param, **_CONFIGS[request.param]}
    processor = image_processor(folder, config)
    assert processor is not None
    tokenizer = AtomTokenizer(folder)
    return _Model(processor, tokenizer, ImagePlacer(processor, tokenizer))


def _tokenizer(special: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    made.train_from_iterator(["what is in this picture\n\n and that \n\n\n"] * 3, trainer)
    made.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    return made


def _items(model: _Model, draw: random.Random, count: int) -> list[ImageItem]:
    sizes = [(draw.randrange(1, 200), draw.randrange(1, 200)) for _ in range(count)]
    return [model.processor.process(Image.new("RGB", size, "red")) for size in sizes]


def _words(model: _Model, draw: random.Random) -> str:
    """Draw a client's words, among them ones that spell tokens of images, whole or in parts."""
    spelled = [*model.processor.marks.reserved]
    parts = [each[:cut] for each in spelled for cut in (2, len(each) - 1)]
    rest = [each[cut:] for each in spelled for cut in (2, len(each) - 1)]
    choices = ["what is this? ", "\n", " ", "é漢", *spelled, *parts, *rest]
    return "".join(draw.choice(choices) for _ in range(draw.randrange(6)))


def _filled(placed: PlacedImage) -> list[int]:
    return [placed.offset + int(at) for at in np.flatnonzero(placed.is_image)]


@pytest.mark.parametrize("seed", range(40))
def test_words_that_spell_a_token_of_images_never_become_one(model: _Model, seed: int) -> None:
    draw = random.Random(seed)
    items = _items(model, draw, draw.randrange(4))
    words = [_words(model, draw) for _ in range(len(items) + 1)]

    found = model.placer.place(_MARK.join(words), _MARK, items)

    image_ids = {
        model.id_of(run.token)
        for item in items
        for group in model.processor.expansion_of(item.grid)
        if not isinstance(group, str)
        for run in group
        if run.is_image
    }
    positions = [at for placed in found.images for at in _filled(placed)]
    assert positions == [at for at, token in enumerate(found.token_ids) if token in image_ids]
    assert [placed.item for placed in found.images] == items
    assert [int(placed.is_image.sum()) for placed in found.images] == [
        item.tokens for item in items
    ]
    marks = found.token_ids.count(model.id_of(model.placer.placeholder))
    assert marks == _count(model, items, model.placer.placeholder)
    shown = model.tokenizer.decode(found.token_ids, skip_special_tokens=False)
    assert shown == _expected_text(model, words, items)


def _count(model: _Model, items: list[ImageItem], token: str) -> int:
    return sum(
        run.count
        for item in items
        for group in model.processor.expansion_of(item.grid)
        if not isinstance(group, str)
        for run in group
        if run.token == token
    )


def _expected_text(model: _Model, words: list[str], items: list[ImageItem]) -> str:
    text = words[0]
    for item, behind in zip(items, words[1:], strict=True):
        for piece in model.processor.expansion_of(item.grid):
            runs = [piece] if isinstance(piece, str) else [run.token * run.count for run in piece]
            text += "".join(runs)
        text += behind
    return text


def test_a_prompt_without_images_keeps_the_letters_of_a_token(model: _Model) -> None:
    word = model.placer.placeholder
    ids = model.placer.place(f"what is {word}?", _MARK, ()).token_ids
    assert model.id_of(word) not in ids
    assert model.tokenizer.decode(ids, skip_special_tokens=False) == f"what is {word}?"
    assert model.placer.spells(f"what is {word}?")
    assert not model.placer.spells("what is this?")


def test_expanded_tokens_equal_those_of_the_expanded_text(model: _Model) -> None:
    draw = random.Random(5)
    items = _items(model, draw, 2)
    words = ["what\n", "\n\nis in", " this picture"]
    found = model.placer.place(_MARK.join(words), _MARK, items)
    whole = _expected_text(model, words, items)
    assert found.token_ids == model.tokenizer.encode(whole, add_special_tokens=False)


def test_a_vocabulary_without_the_tokens_is_refused_at_start(tmp_path: Path) -> None:
    _tokenizer(["<other>"]).save(str(tmp_path / "tokenizer.json"))
    processor = image_processor(tmp_path, {"model_type": "mistral3"})
    assert processor is not None
    with pytest.raises(ModelError, match=r"no token '\[IMG\]'.*--language-model-only"):
        ImagePlacer(processor, AtomTokenizer(tmp_path))
