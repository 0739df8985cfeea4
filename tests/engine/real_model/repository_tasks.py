"""Tasks of lm-evaluation-harness made of the documents of this repository, without any download: a
log-likelihood, a choice among endings, and a generation."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
LAST_WORD, ENDINGS, COPY = "atom_last_word", "atom_endings", "atom_copy"
COUNT = 16  # documents of a task
_PLAIN = re.compile(r"[A-Z][A-Za-z ,]+[a-z]\.")  # a sentence of words alone
_SHARED = {
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood",
    "metadata": {"version": 1.0},
}


def sentences() -> list[str]:
    """The first plain sentences of ten to thirty words in the guides, for two tasks: the harness
    keeps the logits of a text for one way of dividing it."""
    found: dict[str, None] = {}
    for page in sorted((ROOT / "docs" / "guides").glob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\n", " ")
        for sentence in _PLAIN.findall(text):
            if 10 <= len(sentence.split()) <= 30:
                found[sentence] = None
    chosen = list(islice(found, 2 * COUNT))
    assert len(chosen) == 2 * COUNT
    return chosen


def write_tasks(folder: Path) -> None:
    """Write each task with its documents."""
    texts, others = sentences()[:COUNT], sentences()[COUNT:]
    _write(
        folder, LAST_WORD,
        [{"context": text.rpartition(" ")[0], "word": text.rpartition(" ")[2]} for text in texts],
        doc_to_text="{{context}}", doc_to_target=" {{word}}",
        metric_list=[{"metric": "perplexity"}, {"metric": "acc"}],
    )  # fmt: skip
    halves = [(text[: len(text) // 2].rpartition(" ")[0], text) for text in others]
    ends = [text[len(begin) + 1 :] for begin, text in halves]
    rows = []
    for number, (begin, _) in enumerate(halves):
        offered = [ends[(number + step) % COUNT] for step in (3, 7, 11)]
        offered.insert(number % 4, ends[number])
        rows.append({"begin": begin, "ends": offered, "right": number % 4})
    _write(
        folder, ENDINGS, rows, output_type="multiple_choice",
        doc_to_text="{{begin}}", doc_to_choice="{{ends}}", doc_to_target="right",
        metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
    )  # fmt: skip
    example = "The sun is warm."
    shown = f"Text: {example}\nCopy: {example}\n\nText: {{{{text}}}}\nCopy:"
    _write(
        folder, COPY, [{"text": text} for text in texts], output_type="generate_until",
        doc_to_text=shown, doc_to_target=" {{text}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 48, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )  # fmt: skip


def _write(folder: Path, name: str, rows: list[dict[str, object]], **task: object) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    files = {"data_files": {"test": str(data)}}
    told = {"task": name, **_SHARED, "dataset_kwargs": files, **task}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
