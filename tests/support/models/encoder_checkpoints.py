"""Tiny text encoders as they are published: BERT, XLM-RoBERTa and ModernBERT, with the tokenizers
of their kinds, and transformers' hidden states, embeddings and scores of them."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.support.models.byte_tokenizer import build_byte_tokenizer
from tests.support.models.pooling_checkpoint import add_modules

_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,?!"]
_WORDS = ["the", "engine", "tea", "what", "is", "in", "##ing", "##er", "##es"]


@dataclass(frozen=True)
class EncoderFamily:
    """prefix: of transformers' classes; settings: of the configuration, in addition to drawn
    sizes."""

    prefix: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def config_class(self) -> Any:
        return getattr(transformers, f"{self.prefix}Config")

    def model_class(self, *, head: bool) -> Any:
        kind = "ForSequenceClassification" if head else "Model"
        return getattr(transformers, f"{self.prefix}{kind}")


FAMILIES: dict[str, EncoderFamily] = {
    "bert": EncoderFamily("Bert"),
    "roberta": EncoderFamily("Roberta", {"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": EncoderFamily("XLMRoberta", {"pad_token_id": 1, "type_vocab_size": 1}),
    "modernbert": EncoderFamily(
        "ModernBert",
        {
            "local_attention": 8,
            "global_attn_every_n_layers": 3,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
            **dict.fromkeys(("cls_token_id", "sep_token_id"), 1),
        },
    ),
}


def word_piece() -> Tokenizer:
    """A vocabulary of words and their continuations, as BERT's."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *_LETTERS]
    pieces += [f"##{letter}" for letter in _LETTERS]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def unigram() -> Tokenizer:
    """A SentencePiece vocabulary with probabilities, as XLM-RoBERTa's."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(piece, 0.0) for piece in special]
    pieces += [("▁", -2.0), ("▁the", -3.0), ("▁engine", -4.0), ("ing", -4.0), ("é", -9.0)]
    pieces += [(letter, -6.0) for letter in _LETTERS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([*special, "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def byte_level() -> Tokenizer:
    """A vocabulary of bytes, as ModernBERT's."""
    tokenizer = build_byte_tokenizer()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    marks = [(text, tokenizer.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=marks
    )
    return tokenizer


TOKENIZERS = {
    "bert": word_piece, "roberta": byte_level, "xlm-roberta": unigram, "modernbert": byte_level,
}  # fmt: skip


def make_encoder(
    folder: Path, family: str, *, head: bool = False, seed: int = 0, **settings: Any
) -> Path:
    """Write a tiny encoder with drawn weights. head: of one label; settings: of the
    configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TOKENIZERS[family]()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64})
    )
    kind = FAMILIES[family]
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "max_position_embeddings": 64,
    }
    config = kind.config_class(**{**sizes, **kind.settings, "num_labels": 1, **settings})
    torch.manual_seed(seed)
    model = kind.model_class(head=head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, which begin as 1 and 0
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def make_sentence_encoder(
    folder: Path, family: str, *, pooling_mode: str = "mean_tokens", **settings: Any
) -> Path:
    """Write a tiny encoder with sentence-transformers' files."""
    make_encoder(folder, family, **settings)
    add_modules(folder, pooling_mode=pooling_mode)
    return folder


def add_dense(folder: Path, inputs: int, outputs: int) -> None:
    """Put a matrix with a tanh between pooling and normalisation."""
    rows = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    rows.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": kind})
    (folder / "modules.json").write_text(json.dumps(rows))
    dense = folder / "2_Dense"
    dense.mkdir()
    settings = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (dense / "config.json").write_text(json.dumps(settings))
    torch.manual_seed(1)
    tensors = {"linear.weight": torch.randn(outputs, inputs), "linear.bias": torch.randn(outputs)}
    save_file(tensors, dense / "model.safetensors")


def hidden_states(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """transformers' last hidden states [T, H] of one prompt."""
    with torch.no_grad():
        states: torch.Tensor = _oracle(folder, "AutoModel")(torch.tensor([token_ids]))[0]
    return states[0]


@functools.lru_cache(maxsize=2)
def _oracle(folder: Path, kind: str) -> Any:
    """Load a checkpoint with a class of transformers, once for several prompts."""
    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()


def expected_vector(folder: Path, token_ids: list[int], tokens: str = "mean") -> NDArray[Any]:
    """The embedding of length 1 that sentence-transformers makes of these states."""
    hidden = hidden_states(folder, token_ids)
    pooled = {
        "cls": hidden[0],
        "mean": hidden.mean(dim=0),
        "max": hidden.amax(dim=0),
        "lasttoken": hidden[-1],
        "mean_sqrt_len_tokens": hidden.sum(dim=0) / len(hidden) ** 0.5,
    }[tokens]
    vector: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=0).numpy()
    return vector


def expected_label(folder: Path, query: str, document: str) -> float:
    """The number of transformers' head for a pair of texts."""
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(query, document)
    model = _oracle(folder, "AutoModelForSequenceClassification")
    fields = {"input_ids": torch.tensor([encoding.ids])}
    if model.config.model_type == "bert":
        fields["token_type_ids"] = torch.tensor([encoding.type_ids])
    with torch.no_grad():
        return float(model(**fields).logits[0, 0])
