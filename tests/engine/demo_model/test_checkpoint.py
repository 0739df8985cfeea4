"""The committed demo model: small enough, a real Hugging Face checkpoint, and right.

transformers is the oracle of the plain implementation that trained it; the answers are greedy. The
whole list of questions is asked through the real server elsewhere.
"""

from pathlib import Path

import pytest
import torch
import transformers

from tools.demo_model.checkpoint import SIZE_LIMIT_BYTES, read_checkpoint
from tools.demo_model.code_facts import facts_of_code
from tools.demo_model.corpus import Turn, read_corpus
from tools.demo_model.evaluation import ask, known_questions, read_questions
from tools.demo_model.vocabulary import encode_prompt
from tools.train_demo_model import DATA, QUESTIONS, ROOT

NOW = facts_of_code()
FOLDER = ROOT / "examples" / "models" / "atom-tiny"
CHAT = [
    Turn("system", "You are a helpful assistant."),
    Turn("user", "What is a KV cache?"),
    Turn("assistant", "It keeps keys and values."),
    Turn("user", "Und warum? 😀\n  def f(x): return x"),
]
HANDFUL = [
    ("Who are you?", "Atom Tiny"),
    ("what is a kv cache", "keys and values"),
    ("What is continuous batching?", "join and leave"),
    ("What is an AtomDeployment?", "custom resource"),
    ("What is the capital of Spain?", "don't know"),
]


@pytest.fixture(scope="module")
def oracle() -> tuple:
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(FOLDER)


def _messages(turns: list[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def test_folder_is_at_most_eight_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= SIZE_LIMIT_BYTES


def test_transformers_renders_a_chat_to_the_ids_it_was_trained_on(oracle: tuple) -> None:
    _, tokenizer = oracle
    ids = tokenizer.apply_chat_template(
        _messages(CHAT), add_generation_prompt=True, return_dict=False
    )
    assert ids == encode_prompt(read_checkpoint(FOLDER, torch.float32)[1], CHAT)


def test_logits_of_transformers_and_of_the_plain_model_agree(oracle: tuple) -> None:
    model, tokenizer = oracle
    ids = torch.tensor([tokenizer.encode(Path(__file__).read_text(encoding="utf-8"))[:700]])
    plain, _ = read_checkpoint(FOLDER, torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(plain(ids)[0], model(ids).logits, rtol=1e-4, atol=1e-3)


def test_a_cached_step_of_the_plain_model_equals_the_whole_pass() -> None:
    plain, tokenizer = read_checkpoint(FOLDER, torch.float32)
    ids = torch.tensor([encode_prompt(tokenizer, CHAT)])
    with torch.inference_mode():
        whole, _ = plain(ids)
        _, past = plain(ids[:, :-1])
        step, _ = plain(ids[:, -1:], past)
    torch.testing.assert_close(step[0, -1], whole[0, -1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("question", "phrase"), HANDFUL)
def test_transformers_answers_rightly_and_ends_by_itself(
    oracle: tuple, question: str, phrase: str
) -> None:
    model, tokenizer = oracle
    ids = tokenizer.apply_chat_template(
        _messages([Turn("user", question)]), add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=80)[0, ids.shape[1] :]
    assert phrase in tokenizer.decode(out, skip_special_tokens=True)
    assert tokenizer.decode(out[-1:]) == "<|im_end|>"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tenth_listed_question_is_answered_rightly(dtype: torch.dtype) -> None:
    model, tokenizer = read_checkpoint(FOLDER, dtype)
    graded = [ask(model, tokenizer, question) for question in read_questions(QUESTIONS, NOW)[::10]]
    assert [g.question.question for g in graded if not g.correct] == []


def test_list_holds_many_questions_and_some_that_training_never_worded_so() -> None:
    questions = [question.question for question in read_questions(QUESTIONS, NOW)]
    known = known_questions(read_corpus(DATA, ROOT, NOW))
    assert len(questions) >= 60
    assert sum(question.lower() not in known for question in questions) >= 20
