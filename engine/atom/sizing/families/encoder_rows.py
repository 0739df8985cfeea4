"""The text encoders that this version's engine runs, each declared in one row. Pure.

The rows are as those of generating models. An encoder answers pooling requests
alone: embeddings of its hidden states, or scores if it has a head of labels.
"""

from __future__ import annotations

from dataclasses import replace

from atom.sizing.families.encoders import (
    bert,
    bert_classifier,
    bert_encoder,
    bert_names,
    modernbert,
    modernbert_classifier,
    modernbert_encoder,
    modernbert_names,
    roberta_classifier,
    roberta_encoder,
    roberta_fields,
    roberta_names,
)
from atom.sizing.families.reading import (
    ActivationField,
    Architecture,
    Family,
    Head,
    StoredNames,
)

_GELU = ActivationField(default="gelu")
_BERT = Family(
    bert,
    head=Head.NO_MATRIX,
    activation=_GELU,
    stored=StoredNames(names=bert_names),
    encoder=bert_encoder,
)
_ROBERTA = replace(
    _BERT, fields=roberta_fields, stored=StoredNames(names=roberta_names), encoder=roberta_encoder
)
_MODERN = Family(
    modernbert,
    head=Head.NO_MATRIX,
    activation=ActivationField("hidden_activation", "gelu"),
    stored=StoredNames(names=modernbert_names),
    encoder=modernbert_encoder,
)
_ROBERTA_CLASSIFIER = replace(_ROBERTA, encoder=roberta_classifier)

_ROWS = (
    Architecture("BertModel", "bert", "BERT", "encoders.bert", _BERT),
    Architecture(
        "BertForSequenceClassification",
        "",
        "BERT (scores)",
        "encoders.bert",
        replace(_BERT, encoder=bert_classifier),
    ),
    Architecture("RobertaModel", "roberta", "RoBERTa", "encoders.roberta", _ROBERTA),
    Architecture(
        "RobertaForSequenceClassification",
        "",
        "RoBERTa (scores)",
        "encoders.roberta",
        _ROBERTA_CLASSIFIER,
    ),
    Architecture("XLMRobertaModel", "xlm-roberta", "XLM-RoBERTa", "encoders.roberta", _ROBERTA),
    Architecture(
        "XLMRobertaForSequenceClassification",
        "",
        "XLM-RoBERTa (scores)",
        "encoders.roberta",
        _ROBERTA_CLASSIFIER,
    ),
    Architecture("ModernBertModel", "modernbert", "ModernBERT", "encoders.modernbert", _MODERN),
    Architecture(
        "ModernBertForSequenceClassification",
        "",
        "ModernBERT (scores)",
        "encoders.modernbert",
        replace(_MODERN, encoder=modernbert_classifier),
    ),
)
ENCODERS: dict[str, Architecture] = {row.name: row for row in _ROWS}
