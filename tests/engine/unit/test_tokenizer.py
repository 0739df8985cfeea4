from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from atom.errors import ModelError
from atom.tokenizer import Tokenizer, TokenStream
from tests.support.models.byte_tokenizer import END_OF_TEXT, TURN_END, write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def byte_fallback_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Llama 2's kind: pieces with a marked space, and bytes for characters outside the pieces."""
    folder = tmp_path_factory.mktemp("fallback")
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁the", "▁cat", "▁", "c", "a", "t", "ü"]
    raw = RawTokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def streamed(stream: TokenStream, token_ids: list[int]) -> str:
    return "".join([*(stream.push(token_id) for token_id in token_ids), stream.flush()])


# A special token's own text is that token, and decoding leaves special tokens out.
@given(text=st.text().filter(lambda text: "<|" not in text))
def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@given(token_ids=st.lists(st.integers(0, 400), max_size=40))
def test_streamed_text_is_the_decoded_text_for_any_tokens(
    tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    assert streamed(tokenizer.stream(), token_ids) == tokenizer.decode(token_ids)


@given(text=st.text(alphabet="aéñ€字😀 \n", max_size=30))
def test_no_half_character_is_ever_shown(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    shown = [stream.push(t) for t in tokenizer.encode(text, add_special_tokens=False)]
    assert "\ufffd" not in "".join(shown)
    assert "".join(shown) == text
    assert stream.flush() == ""


def test_an_answer_that_ends_inside_a_character_shows_the_replacement(
    tokenizer: Tokenizer,
) -> None:
    token_ids = tokenizer.encode("a€", add_special_tokens=False)[:-1]
    assert streamed(tokenizer.stream(), token_ids) == "a\ufffd"


@given(st.lists(st.sampled_from(["▁the", "▁cat", "▁", "c", "ü", "字", "€"]), max_size=20))
def test_streamed_text_is_the_decoded_text_with_byte_fallback(
    byte_fallback_tokenizer: Tokenizer, pieces: list[str]
) -> None:
    token_ids: list[int] = []
    for piece in pieces:
        known = byte_fallback_tokenizer._tokenizer.token_to_id(piece)
        in_bytes = [byte + 1 for byte in piece.encode()]  # ids 1 to 256 are the bytes
        token_ids += in_bytes if known is None else [known]
    stream = byte_fallback_tokenizer.stream()
    shown = "".join(stream.push(token_id) for token_id in token_ids)
    assert shown == byte_fallback_tokenizer.decode(token_ids)
    assert stream.flush() == ""


def test_bytes_that_make_no_character_are_not_held_back_for_ever(
    byte_fallback_tokenizer: Tokenizer,
) -> None:
    stream = byte_fallback_tokenizer.stream()
    shown = "".join(stream.push(0x80 + 1) for _ in range(50))
    assert shown.count("\ufffd") >= 46


def test_special_tokens_are_read_from_text_and_left_out_of_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(f"hi{TURN_END}", add_special_tokens=False)
    assert len(token_ids) == 3
    assert tokenizer.decode(token_ids) == "hi"
    assert streamed(tokenizer.stream(), token_ids) == "hi"


@given(token_ids=st.lists(st.integers(0, 400), max_size=40))
def test_special_tokens_are_streamed_as_they_are_decoded_when_they_are_shown(
    tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    shown = streamed(tokenizer.stream(skip_special_tokens=False), token_ids)
    assert shown == tokenizer.decode(token_ids, skip_special_tokens=False)


def test_a_special_token_is_shown_as_it_is_written(tokenizer: Tokenizer) -> None:
    text = f"hi{TURN_END}there{END_OF_TEXT}"
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert streamed(tokenizer.stream(skip_special_tokens=False), token_ids) == text
    assert streamed(tokenizer.stream(), token_ids) == "hithere"


def test_special_tokens_are_added_only_on_request(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, bos_token=END_OF_TEXT)
    tokenizer = Tokenizer(tmp_path)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    with_bos = tokenizer.encode("hi", add_special_tokens=True)
    assert with_bos[1:] == plain
    assert tokenizer.special_tokens()["bos_token"] == END_OF_TEXT


def test_special_tokens_may_be_written_as_objects(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    settings = '{"eos_token": {"content": "<|im_end|>", "lstrip": false}, "bos_token": null}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    assert Tokenizer(tmp_path).special_tokens() == {"eos_token": "<|im_end|>"}


def test_a_missing_tokenizer_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: missing.*save_pretrained"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"model": 3}', "\x00\x01"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: damaged"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00"])
def test_damaged_tokenizer_settings_are_named(tmp_path: Path, content: str) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("text", "count", "far_more"),
    [
        ("x" * 100_000, 10_000, True),
        ("x" * 100_000, 49_999, False),  # soon encoded, and not much more
        (" the" * 20_000, 5_000, True),
        (" the" * 20_000, 12_000, False),
        (" the" * 20_000 + "x" * 100_000, 20_000, True),
        ("x" * 8192, 1, False),
        ("", 1, False),
    ],
)
def test_a_text_of_far_more_tokens_is_known_before_all_of_it_is_encoded(
    tokenizer: Tokenizer, text: str, count: int, far_more: bool
) -> None:
    assert tokenizer.has_far_more_than(count, text) is far_more
