"""Makes the demo model examples/models/atom-tiny: a tiny Qwen3 that answers in English.

    python -m tools.train_demo_model --out examples/models/atom-tiny      # train, write, score
    python -m tools.train_demo_model --check examples/models/atom-tiny    # score what is there

`--start DIR` goes on from a checkpoint, with its vocabulary: enough for a few changed answers.
Learns a vocabulary and about three million weights from the question files beside it
(demo_model/questions), with the facts of this checkout's code in them, and the project's
documentation. Needs torch, tokenizers, safetensors and PyYAML; the facts come from the engine and
the operator or, where those are not, from a facts.json that `--facts` names. The defaults take 65 s
on one H200 (measured) and 35 to 50 minutes on 2 idle CPU cores (extrapolated from 24 steps). Exit 1
when fewer than `--require` listed questions are answered rightly. Last line: sizes and sha256.
"""

import argparse
import sys
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, not as a module
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tools.demo_model.checkpoint import (  # noqa: E402
    SIZE_LIMIT_BYTES,
    file_facts,
    read_checkpoint,
    write_settings,
    write_weights,
)
from tools.demo_model.corpus import Corpus, CorpusError, read_corpus  # noqa: E402
from tools.demo_model.evaluation import (  # noqa: E402
    Graded,
    Question,
    ask,
    known_questions,
    read_questions,
)
from tools.demo_model.facts import Fact, FactError, read_facts, write_facts  # noqa: E402
from tools.demo_model.progress import Progress  # noqa: E402
from tools.demo_model.qwen3 import Qwen3, Shape  # noqa: E402
from tools.demo_model.samples import batches  # noqa: E402
from tools.demo_model.training import Recipe, Result, train  # noqa: E402
from tools.demo_model.vocabulary import learn_vocabulary  # noqa: E402

DATA = Path(__file__).resolve().parent / "demo_model" / "questions"
QUESTIONS = ROOT / "tests" / "engine" / "demo_model" / "questions.yaml"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train_demo_model", description="Train or check the demo model atom-tiny."
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--out", type=Path, metavar="DIR", help="train, and write the checkpoint")
    mode.add_argument("--check", type=Path, metavar="DIR", help="score an existing checkpoint")
    parser.add_argument("--start", type=Path, metavar="DIR", help="go on from this checkpoint")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")
    parser.add_argument("--steps", type=int, default=2000, help="optimiser steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=48, help="samples a step (%(default)s)")
    parser.add_argument("--vocab", type=int, default=2048, help="vocabulary size (%(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (%(default)s)")
    parser.add_argument("--dropout", type=float, default=0.0, help="while training (%(default)s)")
    parser.add_argument("--seed", type=int, default=8, help="of everything random (%(default)s)")
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="list to score with")
    parser.add_argument("--facts", type=Path, help="file of facts (default: from the code)")
    parser.add_argument("--require", type=int, default=40, help="exit 1 below (%(default)s right)")
    parser.add_argument("--verbose", action="store_true", help="print every answer")
    return parser.parse_args(argv)


def facts_of_code() -> dict[str, Fact]:
    from tools.demo_model import code_facts  # needs the engine and the operator

    return code_facts.facts_of_code()


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise CorpusError("--device cuda: this torch sees no GPU; use --device cpu")
    return torch.device(name)


def train_checkpoint(options: argparse.Namespace, corpus: Corpus, facts: dict[str, Fact]) -> Result:
    device = resolve_device(options.device)
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    if options.start:
        model, tokenizer = read_checkpoint(options.start, torch.float32)
    else:
        tokenizer = learn_vocabulary(corpus, options.vocab)
        model = Qwen3(Shape(vocab_size=tokenizer.get_vocab_size()), options.dropout)
    write_settings(options.out, model.shape, tokenizer)
    write_facts(options.out, facts)
    print(
        f"corpus: {len(corpus.entries)} answers to {len(known_questions(corpus))} questions, "
        f"{len(corpus.conversations)} dialogues, {len(corpus.documents)} paragraphs\n"
        f"model: {sum(p.numel() for p in model.parameters()):,} parameters, on {device}"
    )
    source = batches(corpus, tokenizer, options.batch, Random(options.seed))
    recipe = Recipe(options.steps, options.lr, warmup_steps=min(100, options.steps // 10 + 1))
    result = train(model.to(device), source, recipe, device)
    write_weights(options.out, model)
    return result


def score(
    folder: Path,
    questions: list[Question],
    known: set[str],
    precision: str,
    options: argparse.Namespace,
) -> int:
    """Prints what went wrong and the score in one precision; returns how many were right."""
    model, tokenizer = read_checkpoint(folder, DTYPES[precision])
    model = model.to(resolve_device(options.device))
    progress = Progress(f"checking {precision}", len(questions), time.perf_counter)
    graded: list[Graded] = []
    for number, question in enumerate(questions, start=1):
        graded.append(ask(model, tokenizer, question))
        progress.advance(number)
    for result in graded:
        if options.verbose or not result.correct:
            mark = "right" if result.correct else f"WRONG, lacks {list(result.missing)}"
            print(f"[{mark}] {result.question.question}\n    {result.answer.text}")
    new = [r for r in graded if r.question.question.lower() not in known]
    right = sum(r.correct for r in graded)
    print(
        f"{precision}: {right} of {len(graded)} right; of the {len(new)} worded as nowhere in "
        f"training, {sum(r.correct for r in new)} right"
    )
    return right


def print_files(folder: Path) -> None:
    facts = file_facts(folder)
    total = sum(f.size_bytes for f in facts)
    if total > SIZE_LIMIT_BYTES:
        raise CorpusError(f"{folder}: {total} bytes, the limit is {SIZE_LIMIT_BYTES}; use --vocab")
    listed = ", ".join(f"{f.name} {f.size_bytes} B sha256:{f.sha256}" for f in facts)
    print(f"{folder}: {total} bytes: {listed}")


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    try:
        facts = read_facts(options.facts) if options.facts else facts_of_code()
        corpus = read_corpus(DATA, ROOT, facts)
        questions = read_questions(options.questions, facts)
        if options.out:
            result = train_checkpoint(options, corpus, facts)
            print(
                f"trained {options.steps} steps, {result.tokens:,} tokens in "
                f"{result.seconds:.0f} s; loss {result.loss:.4f}, "
                f"answer tokens right {result.accuracy:.2%}"
            )
        folder = options.out or options.check
        known = known_questions(corpus)
        worst = min(score(folder, questions, known, name, options) for name in DTYPES)
        print_files(folder)
    except (CorpusError, FactError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if worst >= options.require else 1


if __name__ == "__main__":
    sys.exit(main())
