"""What the demo model is taught of this project is true of this checkout, and so is what it says.

Not a list of wishes: each kind of claim is looked up where it would have to be true.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from atom.config import Config
from atom.entrypoints.cli import build_parser
from tests.support.server.http_app import serve_app
from tools.demo_model.checkpoint import read_checkpoint
from tools.demo_model.code_facts import facts_of_code
from tools.demo_model.corpus import Corpus, CorpusError, Turn, parse_entries, read_corpus
from tools.demo_model.evaluation import answer
from tools.demo_model.facts import FILE, Fact, FactError, fill, names_in, read_facts
from tools.train_demo_model import DATA, QUESTIONS, ROOT

FOLDER = ROOT / "examples" / "models" / "atom-tiny"
NOW = facts_of_code()


def answers(corpus: Corpus) -> Iterator[str]:
    for entry in corpus.entries:
        yield entry.answer
    for dialogue in corpus.conversations:
        yield from (turn.content for turn in dialogue if turn.role == "assistant")


SAID = " ".join(answers(read_corpus(DATA, ROOT, NOW)))


def found(pattern: str) -> set[str]:
    names = set(re.findall(pattern, SAID))
    assert names, f"no answer has {pattern}: this test looks at nothing"
    return names


# ---- what it is taught --------------------------------------------------------------------------


def test_flags_are_flags_of_the_server() -> None:
    (commands,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    kubectl = {"--previous"}
    for flag in found(r"--[a-z][a-z-]+"):
        assert flag in kubectl or flag in commands.choices["serve"]._option_string_actions, flag


def test_files_and_folders_are_in_the_repository() -> None:
    for place in found(r"\b(?:engine|operator|charts|tools|examples|docs)/[\w./-]*\w"):
        assert (ROOT / place).exists(), place


def test_make_targets_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in found(r"\bRun make ([a-z-]+)"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_addresses_of_models_are_taken_by_the_api() -> None:
    taken = set(NOW["model_sources"].values)
    assert {scheme for scheme in found(r"\b[a-z]+://") if scheme not in ("http://",)} <= taken


async def test_paths_are_routes_of_the_server(config: Config) -> None:
    async with serve_app(config) as rig:
        document = (await rig.client.get("/openapi.json")).json()
        for path in found(r"(?<![\w/.:])/(?:v1/[a-z/]+|[a-z]+(?:\.json)?)\b"):
            if path not in document["paths"]:
                assert (await rig.client.get(path)).status_code == 200, path


def test_fields_of_the_spec_are_in_the_schema() -> None:
    file = ROOT / "crds" / "serving.atom.dev_atomdeployments.yaml"
    (version,) = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for field in found(r"\b(?:spec|status)(?:\.[a-zA-Z]+)+"):
        place = schema
        for name in field.split("."):
            assert name in place.get("properties", {}), field
            place = place["properties"][name]


def test_classes_of_the_engine_are_in_its_code() -> None:
    names = "CoreManager|EngineCore|ModelRunner|LLMEngine|InputOutputProcessor|ForwardContext"
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "engine" / "atom").rglob("*.py")
    )
    for name in found(rf"\b(?:{names})\b"):
        assert re.search(rf"^class {name}\b", code, re.MULTILINE), name


@pytest.mark.parametrize("word", ["oci://", "aiter_ops", "one ModelRunner per GPU"])
def test_what_it_once_said_wrongly_is_gone(word: str) -> None:
    assert word not in SAID


def test_what_is_asked_for_by_a_flag_is_told_with_it() -> None:
    assert "--enable-expert-parallel" in told_of("Expert parallelism places")
    assert "--tensor-parallel-size 2" in told_of("Tensor parallelism cuts")
    assert "--method ngram" in told_of("Speculative decoding lets")
    assert "--kv-cache-dtype fp8" in told_of("An fp8 KV cache stores")
    assert "ATOM runs fp8, int8, AWQ and GPTQ" in told_of("Quantization stores")


def told_of(topic: str) -> str:
    (told,) = {text for text in answers(read_corpus(DATA, ROOT, NOW)) if topic in text}
    return told


# ---- facts --------------------------------------------------------------------------------------


def test_every_fact_is_told_or_asked_for() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DATA.glob("*.md")]
    texts.append(QUESTIONS.read_text(encoding="utf-8"))
    assert set().union(*map(names_in, texts)) == set(NOW)


def test_a_name_that_is_no_fact_is_refused_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("## a\n- What?\n\nIt is {nothing}.\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"one\.md: \{nothing\} is no fact; facts: .*block_size"):
        read_corpus(tmp_path, tmp_path, NOW)
    with pytest.raises(FactError):
        fill("{nothing}", NOW)


@pytest.mark.parametrize(
    ("taught", "now", "holds"),
    [
        (Fact(("a",)), Fact(("a",)), True),
        (Fact(("a",)), Fact(("b",)), False),
        (Fact(("a",)), Fact(("a", "b")), False),
        (Fact(("a",), complete=False), Fact(("a", "b"), complete=False), True),
        (Fact(("a", "c"), complete=False), Fact(("a", "b"), complete=False), False),
    ],
)
def test_a_whole_list_holds_as_it_is_and_a_part_while_it_is_a_part(
    taught: Fact, now: Fact, holds: bool
) -> None:
    assert taught.holds_beside(now) is holds


@pytest.mark.parametrize("name", sorted(NOW))
def test_what_the_shipped_model_was_taught_still_holds(name: str) -> None:
    taught = read_facts(FOLDER / FILE)
    assert taught[name].holds_beside(NOW[name]), (
        f"the demo model says {taught[name].said()!r} and the code {NOW[name].said()!r}: train it "
        "again (examples/models/atom-tiny/README.md)"
    )


def test_the_shipped_model_tells_the_facts_that_it_was_taught() -> None:
    """Every answer of the files with a fact in it, word for word: so it is of these files."""
    taught = read_facts(FOLDER / FILE)
    model, tokenizer = read_checkpoint(FOLDER, torch.float32)
    told = wrong = 0
    for path in sorted(DATA.glob("*.md")):
        if path.name == "conversations.md":
            continue
        for entry in parse_entries(path.read_text(encoding="utf-8"), path.name):
            if not names_in(entry.answer):
                continue
            question = entry.questions[0]
            given = answer(model, tokenizer, [Turn("user", question)]).text
            told += 1
            wrong += given != fill(entry.answer, taught)
    assert told >= len(taught) - 2
    assert wrong == 0
