"""Tasks of lm-evaluation-harness whose questions this machine has: a choice, a log-likelihood and
a generation.

- atom_continents: the continent of a city, of the names in the package tzdata
- atom_words: the last word of a sentence of Python's own language reference (pydoc_data)
- atom_sums: the sum of two numbers below 50, after four examples

The questions follow from the seed and from the versions of Python and tzdata.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from pydoc_data.topics import topics
from typing import TypeVar

import yaml

CONTINENTS, WORDS, SUMS = "atom_continents", "atom_words", "atom_sums"
TASKS = (CONTINENTS, WORDS, SUMS)
Item = TypeVar("Item")
_SEED = 7
_PLACES = ("Africa", "America", "Asia", "Europe")
_SENTENCE = re.compile(r"(?<=[.:] )[A-Z][A-Za-z ,]+[a-z]\.")  # of words alone
_EXAMPLES = ((12, 5), (7, 31), (20, 4), (16, 18))
_MOST = 49
_SHARED = {
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood",
    "metadata": {"version": 1.0},
}


def write_tasks(folder: Path, zones: Path, count: int) -> None:
    """Write each task with so many questions. zones: the file zone.tab of tzdata. Raises
    `ValueError` for more questions than there are."""
    draw = random.Random(_SEED)
    _write(
        folder, CONTINENTS, _cities(zones, count, draw), output_type="multiple_choice",
        doc_to_text="{{city}} is a city in", doc_to_choice=list(_PLACES), doc_to_target="place",
        metric_list=[{"metric": "acc"}],
    )  # fmt: skip
    sentences = _drawn("sentences", _sentences(), count, draw)
    _write(
        folder, WORDS,
        [{"begin": text.rpartition(" ")[0], "word": text.rpartition(" ")[2]} for text in sentences],
        doc_to_text="{{begin}}", doc_to_target=" {{word}}",
        metric_list=[{"metric": "acc"}, {"metric": "perplexity"}],
    )  # fmt: skip
    pairs = [(a, b) for a in range(_MOST + 1) for b in range(_MOST + 1)]
    shown = "\n".join(f"{a} + {b} = {a + b}" for a, b in _EXAMPLES)
    _write(
        folder, SUMS,
        [{"a": a, "b": b, "sum": str(a + b)} for a, b in _drawn("sums", pairs, count, draw)],
        output_type="generate_until", doc_to_text=f"{shown}\n{{{{a}}}} + {{{{b}}}} =",
        doc_to_target=" {{sum}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 6, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )  # fmt: skip


def _cities(zones: Path, count: int, draw: random.Random) -> list[dict[str, object]]:
    """Draw cities, as many of each continent. A state may stand between the two in a name."""
    lines = zones.read_text(encoding="utf-8").splitlines()
    names = [line.split("\t")[2].split("/") for line in lines if line[:1] != "#"]
    found: list[dict[str, object]] = []
    for number, place in enumerate(_PLACES):
        cities = sorted({name[-1].replace("_", " ") for name in names if name[0] == place})
        share = len(range(number, count, len(_PLACES)))
        found += [{"city": city, "place": number} for city in _drawn(place, cities, share, draw)]
    draw.shuffle(found)
    return found


def _sentences() -> list[str]:
    """Return the plain sentences of ten to thirty words, each once."""
    found: dict[str, None] = {}
    for name in sorted(topics):
        for sentence in _SENTENCE.findall(" ".join(topics[name].split())):
            if 10 <= len(sentence.split()) <= 30:
                found[sentence] = None
    return list(found)


def _drawn(kind: str, items: list[Item], count: int, draw: random.Random) -> list[Item]:
    if count > len(items):
        raise ValueError(f"{kind}: there are {len(items)}, and {count} are asked for")
    return draw.sample(items, count)


def _write(folder: Path, name: str, rows: list[dict[str, object]], **task: object) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    files = {"data_files": {"test": str(data)}}
    told = {"task": name, **_SHARED, "dataset_kwargs": files, **task}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
