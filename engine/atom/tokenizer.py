"""Tokenizer: text to token ids and back, for one model.

It uses the checkpoint's tokenizer.json, or one made from the vocabulary that the checkpoint has
instead (tokenizer_conversion.py; gguf_file/tokenizer.py). The module wraps the `tokenizers` library
and adds the detokenizer of a streaming server: it returns text one token at a time, never shows
half a character and never holds back more than one character needs. Torch-free; knows nothing of
requests. Used by the input and output processors and the chat template.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, get_args

from tokenizers import decoders, normalizers, pre_tokenizers

from atom.errors import ModelError
from atom.gguf_file.tokenizer import read_gguf_tokenizer
from atom.model_source.json_object import read_object
from atom.sampling_params import TruncationSide
from atom.tokenizer_conversion import converted_folder, convertible
from atom.tokenizer_file import ReadTokenizer, read_tokenizer

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
_REPLACEMENT = "\ufffd"
_WORD_START = "\u2581"  # SentencePiece writes a space so
_NO_TEXT = b"\xff"  # in UTF-8 this byte is never
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # and a single byte so
# A character is at most four tokens long (four bytes, each its own token); a longer tail that
# still ends in U+FFFD is not an incomplete character but bytes that no character has.
_LONGEST_CHARACTER_TOKENS = 4


class TokenStream(Protocol):
    """Turns the tokens of one answer into text, token by token."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """Return the text that is left at the end: an incomplete character shows as U+FFFD."""
        ...


# A text of more characters per token than this is unusual, and shorter than this is soon encoded.
_MOST_USUAL_CHARACTERS = 6
_LEAST_WINDOW_CHARACTERS = 8192
_MOST_WINDOW_CHARACTERS = 1 << 18


class Tokenizer:
    """The vocabulary of one model. Thread-safe: the object does not change after it is loaded."""

    def __init__(self, folder: Path, *, lowercases: bool = False) -> None:
        """folder: or a GGUF file; lowercases: texts before all else, but no added tokens in them.
        Raises `ModelError` when it is missing, damaged, or of an unknown kind."""
        read, self.settings = _read(folder)
        self._tokenizer, self.misplaced = read.tokenizer, read.misplaced
        if lowercases:
            parts = (normalizers.Lowercase(), self._tokenizer.normalizer)
            self._tokenizer.normalizer = normalizers.Sequence(list(filter(None, parts)))
        self.truncation_side = _truncation_side(folder, self.settings, self._tokenizer.truncation)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added_ids = frozenset(added)
        self._byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        self._bytes_of_token: dict[int, bytes] = {}
        self._text_of_token: dict[int, str | None] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode `text`; special tokens written in the text become their ids.

        add_special_tokens: also add the tokens that the model expects before (or after) plain text;
        chat templates write these themselves. The interpreter's lock is released meanwhile.
        """
        # The batch call is the one that releases the lock.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return list(encoding.ids)

    def encode_with_starts(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[list[int], list[int]]:
        """Encode `text` as `encode` does, and return each token's first character in it as well."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids), [start for start, _ in encoding.offsets]

    def encode_pair(
        self, first: str, second: str, most: int | None, side: TruncationSide | None = None
    ) -> tuple[list[int], list[int]]:
        """Encode two texts with the tokens around them, and return each token's segment as well.
        most: tokens of both; the longer text is cut, then both, at the side, which is the
        tokenizer's own for None."""
        (encoding,) = self._tokenizer.encode_batch([(first, second)])
        ids, segments = list(encoding.ids), list(encoding.type_ids)
        if most is None or len(ids) <= most:
            return ids, segments
        sides = encoding.sequence_ids  # None of the tokens around the texts
        lengths = [sides.count(0), sides.count(1)]
        around = len(ids) - sum(lengths)
        rooms = _longest_first(lengths, max(0, most - around))
        kept, cuts_left = [], (side or self.truncation_side) == "left"
        for at in reversed(range(len(ids))) if cuts_left else range(len(ids)):
            text = sides[at]
            if text is None or rooms[text] > 0:
                kept.append(at)
                if text is not None:
                    rooms[text] -= 1
        kept.sort()
        return [ids[at] for at in kept], [segments[at] for at in kept]

    def cut(self, token_ids: list[int], most: int, side: TruncationSide | None = None) -> list[int]:
        """Return at most so many tokens of an encoded text, with the special tokens that open and
        close it. side: whose tokens are cut; the tokenizer's own for None."""
        if len(token_ids) <= most:
            return token_ids
        opens, closes = (token_ids[at] in self._special_ids for at in (0, -1))
        if most < opens + closes:
            return token_ids[:most]
        begin, end = int(opens), len(token_ids) - closes
        surplus = len(token_ids) - most
        if (side or self.truncation_side) == "left":
            return token_ids[:begin] + token_ids[begin + surplus :]
        return token_ids[: end - surplus] + token_ids[end:]

    def token_id(self, text: str) -> int | None:
        """Look up the id of the token that the vocabulary has as this text."""
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    def has_far_more_than(self, count: int, text: str) -> bool:
        """Return whether a long text has more than twice `count` tokens, at the cost of encoding
        about that many. Encoding the whole text could take a thousand times its size in memory.
        False for a text that is not much longer than `count` tokens may be."""
        usual = _MOST_USUAL_CHARACTERS * count
        if len(text) <= max(usual, _LEAST_WINDOW_CHARACTERS):
            return False
        window = min(max(usual, _LEAST_WINDOW_CHARACTERS), _MOST_WINDOW_CHARACTERS)
        found = 0
        for start in range(0, len(text), window):
            part = text[start : start + window]
            found += len(self.encode(part, add_special_tokens=False))
            if found > 2 * count:
                return True
        return False

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode the whole text; ids outside the vocabulary are skipped."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def stream(
        self, *, skip_special_tokens: bool = True, shown_ids: Collection[int] = ()
    ) -> TokenStream:
        """Return a fresh stream; pushing ids, then flushing, gives their `decode`. (For bytes that
        form no character, the window kind may show fewer or more U+FFFD.) shown_ids: special tokens
        that are not skipped with the others."""
        if skip_special_tokens and shown_ids:
            hidden = self._special_ids.difference(shown_ids)
            return _StreamWithout(hidden, self.stream(skip_special_tokens=False))
        if self._byte_level:
            return _ByteStream(self) if skip_special_tokens else _ByteStreamWithSpecials(self)
        return _WindowStream(self, skip_special_tokens=skip_special_tokens)

    def special_tokens(self) -> dict[str, str]:
        """Return bos_token, eos_token and so on as the chat template sees them; only those that
        exist."""
        names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
        found = {name: _token_text(self.settings.get(name)) for name in names}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def size(self) -> int:
        """Count the tokens, added ones among them."""
        return self._tokenizer.get_vocab_size()

    def tokens_from(self, least_id: int) -> dict[int, str]:
        """Return all tokens with ids of at least `least_id`, by id."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return dict(sorted((at, text) for text, at in vocabulary.items() if at >= least_id))

    def special_token_id(self, text: str) -> int | None:
        """Look up the id of the special token that is written like this; None when it is ordinary
        text."""
        token_id = self._tokenizer.token_to_id(text)
        return token_id if token_id in self._special_ids else None

    def added_tokens_in(self, text: str) -> dict[int, str]:
        """Find the added tokens that a text holds, by id and in its order: special ones, and ones
        that only the tokenizer's configuration adds to the vocabulary."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        found = zip(encoded.ids, encoded.tokens, strict=True)
        return {index: token for index, token in found if index in self._added_ids}

    def added_tokens(self) -> dict[str, bool]:
        """Return the tokens that the vocabulary has besides the learned ones, and whether they are
        special."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return {token.content: token.special for token in added}

    def special_text(self, token_id: int) -> str | None:
        """Return how a special token is written; None for others."""
        return self._tokenizer.id_to_token(token_id) if token_id in self._special_ids else None

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes, for vocabularies of bytes; empty for special tokens."""
        known = self._bytes_of_token.get(token_id)
        if known is None:
            known = self._bytes_of_token[token_id] = self._look_up_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str | None:
        """Decode a token's bytes to text; None when they are not whole characters."""
        try:
            return self._text_of_token[token_id]
        except KeyError:
            try:
                text = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                text = None
            self._text_of_token[token_id] = text
            return text

    def spelling(self, token_id: int) -> bytes:
        """Return a token's bytes in any vocabulary, with special tokens' text; empty for ids that
        the vocabulary does not have."""
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._special_ids:
            return piece.encode()
        if self._byte_level:
            return self.token_bytes(token_id)
        byte = _BYTE_TOKEN.fullmatch(piece)
        return bytes.fromhex(byte[1]) if byte else piece.replace(_WORD_START, " ").encode()

    def text_bytes(self, size: int) -> list[bytes]:
        """Return the spelling of the tokens 0 to size - 1. Special tokens are not text: each gets
        unique bytes that no text has, so a grammar can only name it."""
        return [
            _NO_TEXT + str(token_id).encode()
            if token_id in self._special_ids
            else self.spelling(token_id)
            for token_id in range(size)
        ]

    def _look_up_bytes(self, token_id: int) -> bytes:
        piece = None if token_id in self._special_ids else self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in piece)
        except KeyError:  # an added token whose text is not spelled in the byte alphabet
            return piece.encode()


def _longest_first(lengths: list[int], room: int) -> list[int]:
    """Share room out among two texts: the longer one is cut to what the other leaves, but to no
    less than the other; as tokenizers do by the strategy longest_first."""
    short, long = sorted(lengths)
    if short + long <= room:
        return list(lengths)
    if 2 * short > room:
        short = room // 2
    shared = [short, room - short]
    return shared if lengths[0] <= lengths[1] else shared[::-1]


def _read(folder: Path) -> tuple[ReadTokenizer, dict[str, Any]]:
    """Read the tokenizer of a folder or a GGUF file, and its settings. Raises `ModelError`."""
    if folder.is_file():
        found = read_gguf_tokenizer(folder)
        return ReadTokenizer(found.tokenizer, misplaced=()), found.settings
    with ExitStack() as cleaner:
        source = folder
        if not (folder / TOKENIZER_FILE).is_file() and convertible(folder):
            source = converted_folder(folder, cleaner)
        read = read_tokenizer(source / TOKENIZER_FILE)
        settings = read_object(source / SETTINGS_FILE) | read_object(folder / SETTINGS_FILE)
    return read, settings


def _truncation_side(
    folder: Path, settings: dict[str, Any], truncation: dict[str, Any] | None
) -> TruncationSide:
    """Return the end at which texts lose tokens: by the settings, else by tokenizer.json's
    truncation, else the right one, as transformers finds it. Raises `ModelError`."""
    side = settings.get("truncation_side") or (truncation or {}).get("direction", "right")
    if side not in get_args(TruncationSide):
        raise ModelError(
            f"{folder / SETTINGS_FILE}: truncation_side is {side!r}; it must be left or right"
        )
    return cast(TruncationSide, side)


def tokenizer_place(folder: Path) -> Path:
    """Return the file that a tokenizer comes from, for messages."""
    return folder if folder.is_file() else folder / TOKENIZER_FILE


def has_tokenizer(folder: Path) -> bool:
    """Return whether the folder has a vocabulary of any kind; a GGUF file has one."""
    return folder.is_file() or (folder / TOKENIZER_FILE).is_file() or convertible(folder)


_new_decoder = codecs.getincrementaldecoder("utf-8")


class _ByteStream:
    """Decode for vocabularies whose tokens are bytes (GPT-2's alphabet: Qwen, Llama 3, DeepSeek).
    Nearly all tokens are whole characters, and then no decoding is needed."""

    __slots__ = ("_decoder", "_tokenizer", "_within_character")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder: codecs.IncrementalDecoder | None = None  # most answers need none
        self._within_character = False

    def push(self, token_id: int) -> str:
        if not self._within_character:
            text = self._tokenizer.token_text(token_id)
            if text is not None:
                return text
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = _new_decoder("replace")
        text = decoder.decode(self._tokenizer.token_bytes(token_id))
        self._within_character = bool(decoder.getstate()[0])
        return text

    def flush(self) -> str:
        self._within_character = False
        return "" if self._decoder is None else self._decoder.decode(b"", True)


class _ByteStreamWithSpecials(_ByteStream):
    """Shows special tokens too, as they are written."""

    __slots__ = ()

    def push(self, token_id: int) -> str:
        special = self._tokenizer.special_text(token_id)
        return super().push(token_id) if special is None else self.flush() + special


class _StreamWithout:
    """Leaves out some tokens."""

    __slots__ = ("_hidden", "_stream", "flush")

    def __init__(self, hidden: frozenset[int], stream: TokenStream) -> None:
        self._hidden = hidden
        self._stream = stream
        self.flush = stream.flush

    def push(self, token_id: int) -> str:
        return "" if token_id in self._hidden else self._stream.push(token_id)


class _WindowStream:
    """Decodes for every other vocabulary: decodes the last few tokens with and without the new one.

    The window starts at the tokens shown last, because how a token reads depends on whether
    it comes first (a leading space is dropped) and on its neighbours (byte fallback)."""

    __slots__ = ("_decode", "_ids", "_shown", "_shown_text")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._shown = 0  # how many of the window's tokens have been shown
        self._shown_text = ""

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if not text.endswith(_REPLACEMENT):
            return self._show(text, len(self._ids))
        settled = len(self._ids) - (_LONGEST_CHARACTER_TOKENS - 1)
        if settled <= self._shown:
            return ""
        return self._show(self._decode(self._ids[:settled]), settled)

    def flush(self) -> str:
        return self._show(self._decode(self._ids), len(self._ids))

    def _show(self, text: str, count: int) -> str:
        """Return the new part of `text`, the text of the window's first `count` tokens, and mark it
        as shown."""
        new = text[len(self._shown_text) :]
        if not new:
            self._shown = count
            return ""
        del self._ids[: self._shown]
        self._shown = count - self._shown
        self._shown_text = self._decode(self._ids[: self._shown])
        return new


def _token_text(value: Any) -> str | None:
    """Return a special token's text, given as a text or as an object with the text as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable spelling of bytes: printable Latin-1 characters represent
    themselves, the other bytes follow in order from U+0100."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = {character: ord(character) for character in alphabet if ord(character) < 256}
    rest = (byte for byte in range(256) if byte not in own.values())
    shifted = [character for character in alphabet if ord(character) >= 256]
    return own | dict(zip(shifted, rest, strict=True))


_BYTE_OF_CHARACTER = _byte_alphabet()
