"""Tiny vocabularies that are no tokenizer.json, trained or counted from a short text."""

from __future__ import annotations

import base64
import io
import itertools
import json
from pathlib import Path
from typing import Any

import sentencepiece

TEXT = """\
The cat sat on the mat, and the dog sat on the log. What is the weather in Zürich today?
It is 20 °C, and the sky isn't grey: it's blue! HELLO Hello hello. 1, 12, 123, 1234, 12345.
def add(a, b):\n    return a + b\n\n今天天气很好，我们去公园散步。天气 weather 天气.
    indented text,  two spaces,\ttabs\r\nand lines.\n\n\nThe end. 🙂 naïve café
"""
SAMPLES = (
    "The cat sat on the mat.",
    "  two spaces in front, and a tab\there",
    "今天天气 is the weather, isn't it? WE'LL see: 12345678",
    "an unknown character: ☃ 🙂🙂",
    "lines\n\n\n  of\r\ncode():\n    return 1\n",
    "",
)


def write_sentencepiece(folder: Path, kind: str) -> Any:
    """tokenizer.model of Llama 2's form; what reads it, as the oracle."""
    folder.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines() * 4),
        model_writer=written,
        model_type=kind,
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "legacy": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def byte_pairs(size: int = 400) -> dict[bytes, int]:
    """Ranks of tiktoken's form: every byte, then the commonest pairs within words, again and
    again."""
    words = [[bytes([byte]) for byte in word.encode()] for word in TEXT.split(" ")]
    ranks = {bytes([byte]): byte for byte in range(256)}
    while len(ranks) < size:
        counts: dict[bytes, int] = {}
        for word in words:
            for left, right in itertools.pairwise(word):
                counts[left + right] = counts.get(left + right, 0) + 1
        new = max((pair for pair in counts if pair not in ranks), key=lambda pair: counts[pair])
        ranks[new] = len(ranks)
        words = [_merged(word, new) for word in words]
    return ranks


def _merged(word: list[bytes], new: bytes) -> list[bytes]:
    merged: list[bytes] = []
    for piece in word:
        if merged and merged[-1] + piece == new:
            merged[-1] = new
        else:
            merged.append(piece)
    return merged


def write_kimi(folder: Path, special: dict[int, tuple[str, bool]]) -> dict[bytes, int]:
    """tiktoken.model and settings of Kimi-K2's form; special: by id the text, and whether answers
    leave it out. The ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = byte_pairs()
    lines = (f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items())
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    settings = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {
            str(index): {"content": text, "special": hidden}
            for index, (text, hidden) in special.items()
        },
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ranks


def write_tekken(
    folder: Path, pattern: str, special: tuple[str, ...] | None, version: str = "v13"
) -> dict[bytes, int]:
    """tekken.json alone; special: the first tokens, None as in files of before 2025, which do not
    say. The ranks behind them."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = byte_pairs()
    count = max(20, len(special or ()))
    content: dict[str, Any] = {
        "config": {
            "pattern": pattern,
            "num_vocab_tokens": len(ranks),
            "default_vocab_size": len(ranks) + count,
            "default_num_special_tokens": count,
            "version": version,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for token, rank in ranks.items()
        ],
    }
    if special is not None:
        content["special_tokens"] = [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(special)
        ]
    (folder / "tekken.json").write_text(json.dumps(content))
    return ranks
