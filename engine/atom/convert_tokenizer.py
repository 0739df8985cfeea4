"""`python -m atom.convert_tokenizer FOLDER TARGET`: a checkpoint's tokenizer as tokenizer.json.

It converts vocabularies of sentencepiece, of tiktoken (Kimi-K2) and Mistral's tekken. transformers
reads them, so the conversion is a separate process (tokenizer_conversion.py starts it). No code of
the checkpoint is run. On an error it ends with 1 and one line on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atom.bounded_input.bounded_json import LISTING, read_json_file

TEKKEN, TIKTOKEN, SENTENCEPIECE = "tekken.json", "tiktoken.model", "tokenizer.model"
_SETTINGS = "tokenizer_config.json"
# How Kimi's own code, which a checkpoint brings and this module does not run, cuts text into words.
_KIMI_CLASS = "TikTokenTokenizer"
_KIMI_RESERVED = 256
_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI_WORDS = "|".join(
    (
        r"[\p{Han}]+",
        f"{_LETTERS}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_LETTERS}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_PROBES = (
    "Hello, how are you today?",
    "1234 + 5 = ½ (naïve)",
    "def f(x):\n    return x  # 你好 🙂",
)
_TEKKEN_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class ConversionError(Exception):
    """The checkpoint's tokenizer cannot be converted; the message gives the reason and the
    remedy."""


def convert(folder: Path, target: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `target`. Raises `ConversionError`."""
    from transformers import AutoTokenizer

    if (folder / TIKTOKEN).is_file():
        tokenizer = _kimi(folder)
    elif (folder / TEKKEN).is_file():
        tokenizer = _tekken(folder / TEKKEN)
    else:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
        _compare(tokenizer, folder / SENTENCEPIECE)
    if not getattr(tokenizer, "is_fast", False):
        raise ConversionError(f"its {type(tokenizer).__name__} has no form as tokenizer.json")
    tokenizer.save_pretrained(str(target), save_jinja_files=False)


def _compare(tokenizer: Any, file: Path) -> None:
    """Refuse a class that is not the vocabulary's own, which would silently give other tokens.
    Raises `ConversionError`. (A leading space is ignored: Llama's class counts it to the first
    word.)"""
    if not file.is_file():
        return
    from sentencepiece import SentencePieceProcessor

    try:
        oracle = SentencePieceProcessor(model_file=str(file))
    except RuntimeError:  # of another kind, which transformers has found out
        return
    for text in _PROBES:
        if tokenizer.encode(text, add_special_tokens=False) != oracle.encode(text):
            raise ConversionError(
                f"{file.name}: a {type(tokenizer).__name__} gives other tokens than sentencepiece; "
                f"tokenizer_class in {_SETTINGS} is not the vocabulary's"
            )


def _kimi(folder: Path) -> Any:
    """Convert byte pairs by rank; the special tokens after them keep their given ids."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    settings = _settings(folder)
    name = settings.get("tokenizer_class")
    if name != _KIMI_CLASS:
        raise ConversionError(
            f"{TIKTOKEN}: how a {name} cuts text into words is said in code of the checkpoint, "
            f"which is not run; supported: {_KIMI_CLASS} (Kimi)"
        )
    converted = TikTokenConverter(str(folder / TIKTOKEN), pattern=_KIMI_WORDS).converted()
    first = converted.get_vocab_size()
    said = {int(key): value for key, value in settings.get("added_tokens_decoder", {}).items()}
    end = max(first + _KIMI_RESERVED, *said, first - 1)
    for index in range(first, end):
        token = said.get(index) or {"content": f"<|reserved_token_{index}|>", "special": True}
        converted.add_tokens(
            [AddedToken(token["content"], special=bool(token.get("special")), normalized=False)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=converted, **_special(settings))


def _tekken(file: Path) -> Any:
    """Convert Mistral's tokenizer. Plain text begins with <s>, as in Mistral's own. Files from
    before 2025 leave their special tokens to mistral-common, and all files leave the format of a
    conversation to it."""
    from mistral_common.integrations.chat_templates.chat_templates import (
        convert_tokenizer_to_chat_template,
    )
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.mistral.tokenizer import MistralConverter

    converted = MistralConverter(str(file)).converted()
    begin = _TEKKEN_SPECIAL["bos_token"]
    converted.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, converted.token_to_id(begin))]
    )
    try:
        template = convert_tokenizer_to_chat_template(file)
    except Exception:  # of a kind without conversations that it knows: completions are served
        template = None
    return PreTrainedTokenizerFast(
        tokenizer_object=converted, chat_template=template, **_TEKKEN_SPECIAL
    )


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / _SETTINGS
    settings = read_json_file(file, LISTING) if file.is_file() else {}
    return settings if isinstance(settings, dict) else {}


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: settings.get(name) for name in ("bos_token", "eos_token", "unk_token")}
    plain = {
        key: text["content"] if isinstance(text, dict) else text for key, text in texts.items()
    }
    return {name: text for name, text in plain.items() if isinstance(text, str)}


def main(run: Callable[[Path, Path], None] = convert) -> int:
    """Convert, and return the exit code."""
    folder, target = (Path(argument) for argument in sys.argv[1:])
    try:
        run(folder, target)
    except Exception as error:  # libraries of three kinds of files, each with its own errors
        lines = str(error).strip().splitlines() or [repr(error)]
        print(f"error: {lines[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # transformers imports torch if it is installed, and does not need it here: 1.4 s of 2.4.
    sys.modules["torch"] = None  # type: ignore[assignment]
    sys.exit(main())
