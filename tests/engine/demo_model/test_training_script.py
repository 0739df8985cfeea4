"""The training script: readable text in, a loadable checkpoint out, the same one every time."""

from pathlib import Path
from random import Random

import pytest
import transformers

from tools.demo_model.code_facts import facts_of_code
from tools.demo_model.corpus import Corpus, CorpusError, Turn, parse_conversations, parse_entries
from tools.demo_model.evaluation import Answer, Question, grade
from tools.demo_model.facts import FILE, Fact, read_facts, write_facts
from tools.demo_model.samples import READING_WEIGHT, chat_sample
from tools.demo_model.training import Recipe, learning_rate
from tools.demo_model.variation import ask_definition, rephrase
from tools.demo_model.vocabulary import END_OF_TEXT, learn_vocabulary
from tools.train_demo_model import main

ENTRY = """# Title
## block
- How big is a block?
- define: a block

A block holds
16 tokens.
"""


def _train(folder: Path, *more: str) -> int:
    listed = folder.parent / "one.yaml"
    listed.write_text('- {question: "Hi", expect: ["hello"]}\n', encoding="utf-8")
    options = ["--out", str(folder), "--steps", "2", "--batch", "4"]
    options += ["--device", "cpu", "--questions", str(listed), "--require", "0"]
    return main([*options, *more])


def test_two_runs_make_the_same_checkpoint_and_transformers_loads_it(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert _train(first) == _train(again) == 0
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {
        p.name: p.read_bytes() for p in again.iterdir()
    }
    model = transformers.AutoModelForCausalLM.from_pretrained(first)
    assert model.config.architectures == ["Qwen3ForCausalLM"]


def test_facts_of_a_file_are_taught_in_place_of_the_codes(tmp_path: Path) -> None:
    """On a machine that has neither the engine nor the operator."""
    facts = facts_of_code() | {"http_port": Fact(("99",))}
    write_facts(tmp_path, facts)
    made = tmp_path / "made"
    assert _train(made, "--facts", str(tmp_path / FILE)) == 0
    assert read_facts(made / FILE) == facts


def test_check_of_a_folder_without_a_checkpoint_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert "--out" in error


def test_an_entry_has_questions_terms_and_one_answer() -> None:
    (entry,) = parse_entries(ENTRY, "block.md")
    assert entry.questions == ("How big is a block?",)
    assert entry.terms == ("a block",)
    assert entry.answer == "A block holds 16 tokens."


def test_an_entry_without_an_answer_is_refused_with_file_and_line() -> None:
    with pytest.raises(CorpusError, match=r"block\.md:8"):
        parse_entries(ENTRY + "## empty\n- What?\n", "block.md")


def test_a_dialogue_without_a_last_answer_is_refused() -> None:
    with pytest.raises(CorpusError, match="ends without an answer"):
        parse_conversations("User: Hi\nAssistant: Hello\nUser: And?\n", "talk.md")


def test_learning_is_graded_on_the_assistants_words_and_the_end_of_its_turn() -> None:
    corpus = Corpus(parse_entries(ENTRY, "block.md"), (), ())
    tokenizer = learn_vocabulary(corpus, 300)
    sample = chat_sample(tokenizer, [Turn("user", "Hi"), Turn("assistant", "Yes")])
    graded = [i for i, w in zip(sample.ids, sample.weights, strict=True) if w == 1.0]
    assert tokenizer.decode(graded, skip_special_tokens=False) == "Yes<|im_end|>"
    assert READING_WEIGHT in sample.weights
    assert END_OF_TEXT not in tokenizer.decode(sample.ids, skip_special_tokens=False)


def test_an_answer_is_right_only_with_every_phrase_and_its_own_end() -> None:
    question = Question("?", ("Blocks", "16"))
    assert grade(question, Answer("blocks of 16 tokens", ended=True)).correct
    assert grade(question, Answer("blocks", ended=True)).missing == ("16",)
    assert not grade(question, Answer("blocks of 16 tokens", ended=False)).correct


def test_learning_rate_rises_to_its_peak_and_falls_to_nothing() -> None:
    recipe = Recipe(steps=100, peak_learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate(recipe, step) for step in range(101)]
    assert rates[9] == max(rates) == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.0)


def test_rewording_keeps_the_subject_of_a_question() -> None:
    random = Random(0)
    for _ in range(20):
        assert "scale a model" in rephrase("How do I scale a model?", random)
        assert "ZMQ" in ask_definition("ZMQ", random)
    assert rephrase("Hello", random) == "Hello"
