"""The training of the model with eyes: its pictures, and a checkpoint that others read."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from atom.images.processing.pixtral import pixtral_processor
from atom.images.processing.settings import read_settings
from tools.demo_eyes.checkpoint import read_checkpoint, shape_of
from tools.demo_eyes.model import EyesShape
from tools.demo_eyes.pictures import PLACES, Scene, Square, draw_scene, paint
from tools.demo_eyes.questions import Subject, ask, describe
from tools.demo_eyes.samples import IGNORED, Batch, Conversations, grid_of, values_of
from tools.demo_eyes.train import EXAM_SEED, main
from tools.demo_eyes.training import Score, examine
from tools.demo_eyes.vocabulary import (
    CHAT_TEMPLATE,
    IMAGE,
    image_text,
    learn_vocabulary,
)
from tools.demo_model.vocabulary import encode

SHAPE = EyesShape(512, 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eyes")
    assert _train(folder) == 0
    return folder


def _train(folder: Path, *more: str) -> int:
    options = ["--out", str(folder), "--steps", "2", "--batch", "4", "--exam", "25"]
    return main([*options, "--device", "cpu", "--require", "0", *more])


def test_two_runs_make_the_same_checkpoint_with_any_number_of_workers(
    made: Path, tmp_path: Path
) -> None:
    assert _train(tmp_path, "--workers", "1") == 0
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        each.name: each.read_bytes() for each in made.iterdir()
    }


def test_transformers_computes_what_the_plain_model_computes(made: Path) -> None:
    plain, tokenizer = read_checkpoint(made, torch.float32)
    oracle = transformers.AutoModelForImageTextToText.from_pretrained(made, dtype=torch.float32)
    ids = encode(tokenizer, f"<|im_start|>user\n{image_text(3, 4)}What is this?<|im_end|>\n")
    pixels = torch.rand(1, 3, 48, 64)
    with torch.inference_mode():
        found = plain(torch.tensor([ids]), pixels)
        expected = oracle.eval()(
            input_ids=torch.tensor([ids]),
            pixel_values=pixels,
            image_sizes=torch.tensor([[48, 64]]),
        ).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_pictures_are_processed_as_the_engine_processes_them(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    processor = pixtral_processor(read_settings(made, config), config)
    shape = shape_of(learn_vocabulary())
    random = Random(3)
    for _ in range(60):
        width, height = random.randint(40, 400), random.randint(40, 400)
        picture = paint(draw_scene(random), width, height, random)
        item = processor.process(picture)
        rows, columns = grid_of(height, width, shape)
        assert processor.tokens_of(item.grid) == rows * columns
        side = shape.patch * shape.merge
        found = values_of(picture, rows * side, columns * side)
        np.testing.assert_allclose(found, item.pixels, atol=1e-5)


def test_a_square_is_where_the_answer_says(tmp_path: Path) -> None:
    for place, name in enumerate(PLACES):
        scene = Scene((Square("black", place),))
        picture = np.asarray(paint(scene, 90, 90, Random(place)).convert("L"), dtype=np.int32)
        row, column = np.argwhere(picture < 60).mean(axis=0) // 30
        assert (row, column) == (place // 3, place % 3)
        assert describe(scene) == f"One square: black {name}."


def test_a_digit_is_painted_in_its_colour() -> None:
    picture = np.asarray(paint(Scene(digit=8, colour="blue"), 80, 80, Random(1)), dtype=np.int32)
    ink = picture[(picture[..., 2] - picture[..., 0]) > 60]
    assert len(ink) > 100
    assert (ink[:, 2] > ink[:, 1]).all()


def test_answers_follow_from_the_scene() -> None:
    random = Random(2)
    scene = Scene((Square("red", 0), Square("blue", 4), Square("blue", 8)))
    expected = {
        Subject.NUMBER: {"There are three squares."},
        Subject.DIGIT: {"There is no digit."},
        Subject.WHOLE: {
            "Three squares: red at the top left, blue in the middle, blue at the bottom right."
        },
    }
    for subject, answers in expected.items():
        assert {ask(subject, scene, random).answer for _ in range(10)} == answers
    for _ in range(40):
        asked = ask(Subject.PLACE, scene, random)
        assert "blue" not in asked.question, "two are blue"
        is_red = "red" in asked.question
        assert asked.answer.endswith("is at the top left.") == is_red


def test_the_exam_draws_other_pictures_than_training_and_asks_one_question() -> None:
    tokenizer = learn_vocabulary()
    exam = Conversations(tokenizer, SHAPE, EXAM_SEED, batches=3, size=8, exam=True)
    drawn = Conversations(tokenizer, SHAPE, "train 1", batches=3, size=8)
    pictures = {picture.tobytes() for number in range(3) for picture in exam[number].pixels.numpy()}
    trained = {picture.tobytes() for number in range(3) for picture in drawn[number].pixels.numpy()}
    assert len(pictures) == 24
    assert not pictures & trained
    for number in range(3):
        batch = exam[number]
        assert len(batch.subjects) == len(batch.pixels) == 8
        for row in batch.targets:
            said = tokenizer.decode(row[row != IGNORED].tolist(), skip_special_tokens=False)
            assert said.count("<|im_end|>") == 1
            assert said.endswith("<|im_end|>")


def test_an_answer_is_right_only_as_a_whole(made: Path) -> None:
    """The exam counts the answers of greedy decoding, token by token."""
    model, tokenizer = read_checkpoint(made, torch.float32)
    exam = Conversations(tokenizer, model.shape, EXAM_SEED, batches=1, size=4, exam=True)
    batch = exam[0]
    wrong = examine(model, [batch], torch.device("cpu"))
    assert isinstance(wrong, Score)
    assert wrong.right.total() == 0
    with torch.inference_mode():
        said = model(batch.inputs, batch.pixels).argmax(-1)
    targets = torch.where(batch.targets == IGNORED, IGNORED, said)
    assert examine(model, [_with(batch, targets)], torch.device("cpu")).share == 1.0
    place = int((targets[0] != IGNORED).nonzero()[-1])
    targets[0, place] += 1
    assert examine(model, [_with(batch, targets)], torch.device("cpu")).right.total() == 3


def _with(batch: Batch, targets: torch.Tensor) -> Batch:
    return Batch(batch.inputs, targets, batch.pixels, batch.subjects)


def test_the_template_writes_what_training_shows(made: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    parts = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.chat_template == CHAT_TEMPLATE
    expected = f"<|im_start|>user\n{IMAGE}What is this?<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected


def test_a_check_without_a_checkpoint_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert "--out" in capsys.readouterr().err


def test_a_picture_follows_from_its_seed() -> None:
    first = paint(draw_scene(Random("x")), 100, 70, Random("y"))
    again = paint(draw_scene(Random("x")), 100, 70, Random("y"))
    assert isinstance(first, Image.Image)
    assert first.tobytes() == again.tobytes()
