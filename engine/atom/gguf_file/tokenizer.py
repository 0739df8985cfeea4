"""The vocabulary of a GGUF file as the `tokenizers` library's tokenizer.

There are two kinds: byte pairs with merges ("gpt2" in llama.cpp), and sentencepiece's byte pairs,
whose merges follow from the scores ("llama"). For the first kind the file names a rule that splits
texts into words; each rule is that of the model's own tokenizer.json. An unknown rule is refused,
since other tokens than a model was trained with silently give wrong answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from atom.errors import ModelError
from atom.gguf_file.header import read_header
from atom.gguf_file.vocabulary import (
    GgufVocabulary,
    TokenKind,
    read_vocabulary,
    tokenizer_settings,
)

_BYTE_PAIRS, _SENTENCEPIECE = "gpt2", "llama"
_WORD_START = "\u2581"  # sentencepiece writes a space so
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Words:
    """A rule that splits texts into words. whole: a word that is a token is not split by merges;
    begins: texts begin with the bos token, unless the file states otherwise; composed: characters
    are composed first (NFC)."""

    cut: Callable[[], Any]
    whole: bool = False
    begins: bool = False
    composed: bool = False


def _by_pattern(pattern: str) -> Callable[[], Any]:
    def cut() -> Any:
        words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([words, byte_level])

    return cut


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digit_by_digit() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_LLAMA3 = _Words(_by_pattern(_LLAMA3_WORDS), whole=True, begins=True)
_QWEN2 = _Words(_by_pattern(_QWEN2_WORDS), composed=True)
# By llama.cpp's names of them.
_WORDS: dict[str, _Words] = {
    "gpt-2": _Words(_gpt2),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "smollm": _Words(_digit_by_digit),
    "tekken": _Words(_by_pattern(_TEKKEN_WORDS), whole=True, begins=True),
}


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A file's tokenizer, and the settings of its tokenizer_config.json."""

    tokenizer: Tokenizer
    settings: dict[str, Any]


def read_gguf_tokenizer(file: Path) -> GgufTokenizer:
    """Make the tokenizer of a file. Raises `ModelError`."""
    header = read_header(file)
    vocabulary = read_vocabulary(header)
    make = {_BYTE_PAIRS: _byte_pairs, _SENTENCEPIECE: _sentencepiece}.get(vocabulary.model)
    if make is None:
        raise _refusal(file, "model", vocabulary.model, (_BYTE_PAIRS, _SENTENCEPIECE))
    try:
        tokenizer = make(file, vocabulary)
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise ModelError(
            f"{file}: its vocabulary makes no tokenizer ({error}); download the file again, or "
            "pass the model's tokenizer with --tokenizer FOLDER"
        ) from error
    # In the order of their ids, which they have already: none is added to the vocabulary.
    tokenizer.add_special_tokens([_added(text, special=True) for text in vocabulary.special()])
    tokenizer.add_tokens([_added(text, special=False) for text in vocabulary.user_defined()])
    return GgufTokenizer(tokenizer, tokenizer_settings(header, vocabulary.roles))


def _byte_pairs(file: Path, vocabulary: GgufVocabulary) -> Tokenizer:
    words = _WORDS.get(vocabulary.pre)
    if words is None:
        raise _refusal(file, "pre", vocabulary.pre, tuple(_WORDS))
    if not vocabulary.merges:
        raise _refusal(file, "merges", "(none)", ("a list of pairs",))
    model = models.BPE(
        vocab=_ids(vocabulary), merges=list(vocabulary.merges), ignore_merges=words.whole
    )
    tokenizer = Tokenizer(model)
    if words.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = words.cut()
    tokenizer.decoder = decoders.ByteLevel()
    _surround(tokenizer, vocabulary, begins=words.begins)
    return tokenizer


def _sentencepiece(file: Path, vocabulary: GgufVocabulary) -> Tokenizer:
    model = models.BPE(
        vocab=_ids(vocabulary),
        merges=_merges_by_score(vocabulary),
        unk_token=vocabulary.roles.get("unk_token"),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefixed = vocabulary.add_space_prefix is not False
    spaces = normalizers.Replace(" ", _WORD_START)
    steps = [normalizers.Prepend(_WORD_START), spaces] if prefixed else [spaces]
    tokenizer.normalizer = normalizers.Sequence(steps)
    texts = [decoders.Replace(_WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        texts.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(texts)
    _surround(tokenizer, vocabulary, begins=True)
    return tokenizer


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    return {text: token_id for token_id, text in enumerate(vocabulary.tokens)}


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Return all merges of two tokens into one, the best token first. Any of a token's merges leads
    to it, so the first by its parts' ids is taken first."""
    ids = _ids(vocabulary)
    found: list[tuple[float, int, int, int]] = []
    for token_id, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind != TokenKind.NORMAL:
            continue
        for cut in range(1, len(text)):
            left, right = ids.get(text[:cut]), ids.get(text[cut:])
            if left is not None and right is not None:
                found.append((-vocabulary.scores[token_id], token_id, left, right))
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(found)]


def _surround(tokenizer: Tokenizer, vocabulary: GgufVocabulary, *, begins: bool) -> None:
    """Put bos and eos around plain text, as the file or its kind of tokenizer specifies."""
    roles = vocabulary.roles
    before = roles.get("bos_token") if _either(vocabulary.add_bos, begins) else None
    behind = roles.get("eos_token") if vocabulary.add_eos else None
    around = [text for text in (before, behind) if text is not None]
    if not around:
        return
    parts = [before, "$A", behind]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part is not None],
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(around)],
    )


def _either(said: bool | None, default: bool) -> bool:
    return default if said is None else said


def _added(text: str, *, special: bool) -> AddedToken:
    return AddedToken(text, special=special, normalized=False)


def _refusal(file: Path, key: str, value: str, known: tuple[str, ...]) -> ModelError:
    return ModelError(
        f"{file}: tokenizer.ggml.{key} is {value[:60]!r}, and known are {', '.join(known)}; pass "
        "the model's tokenizer with --tokenizer FOLDER (its tokenizer.json and "
        "tokenizer_config.json)"
    )
