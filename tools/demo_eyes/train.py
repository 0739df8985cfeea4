"""Makes the demo model examples/models/atom-tiny-eyes: a tiny Mistral Small 3 that reads pictures.

    python -m tools.demo_eyes.train --out examples/models/atom-tiny-eyes      # train, write, score
    python -m tools.demo_eyes.train --check examples/models/atom-tiny-eyes    # score it again

It learns the number, colours and places of squares, and a digit, from pictures that are drawn while
it trains, and is then asked about pictures of another seed. Needs torch, tokenizers, safetensors,
numpy and Pillow. Exit 1 if it answers less than `--require` of the exam. Last line: its sizes and
sha256.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
if str(ROOT) not in sys.path:  # run as a file, not as a module
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from tools.demo_eyes.checkpoint import (  # noqa: E402
    read_checkpoint,
    shape_of,
    write_checkpoint,
)
from tools.demo_eyes.model import Eyes  # noqa: E402
from tools.demo_eyes.samples import Batch, Conversations  # noqa: E402
from tools.demo_eyes.training import EyesRecipe, Score, examine, train  # noqa: E402
from tools.demo_eyes.vocabulary import learn_vocabulary  # noqa: E402
from tools.demo_model.checkpoint import file_facts  # noqa: E402

EXAM_SEED = "exam"
_EXAM_BATCH = 25


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo_eyes.train", description="Train or check the demo model atom-tiny-eyes."
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--out", type=Path, metavar="DIR", help="train, and write the checkpoint")
    mode.add_argument("--check", type=Path, metavar="DIR", help="score an existing checkpoint")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")
    parser.add_argument("--steps", type=int, default=4000, help="optimiser steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="pictures a step (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="that draw pictures (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (%(default)s)")
    parser.add_argument("--exam", type=int, default=1000, help="unseen pictures (%(default)s)")
    parser.add_argument(
        "--require", type=float, default=0.95, help="exit 1 below this share (%(default)s)"
    )
    return parser.parse_args(argv)


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def train_checkpoint(options: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = learn_vocabulary()
    model = Eyes(shape_of(tokenizer))
    parameters = sum(each.numel() for each in model.parameters())
    print(f"model: {parameters:,} parameters, on {device}", flush=True)
    drawn = Conversations(
        tokenizer, model.shape, f"train {options.seed}", batches=options.steps, size=options.batch
    )
    batches: DataLoader[Batch] = DataLoader(
        drawn, batch_size=None, num_workers=options.workers,
        prefetch_factor=8 if options.workers else None,
    )  # fmt: skip
    seconds = train(model.to(device), batches, EyesRecipe(options.steps), device)
    print(f"trained on {options.steps * options.batch:,} pictures in {seconds:.0f} s", flush=True)
    write_checkpoint(options.out, model, tokenizer)


def score(folder: Path, dtype: torch.dtype, options: argparse.Namespace) -> Score:
    """Examine a checkpoint in one precision, on pictures that training never draws."""
    device = resolve_device(options.device)
    model, tokenizer = read_checkpoint(folder, dtype)
    exam = Conversations(
        tokenizer, model.shape, EXAM_SEED, batches=-(-options.exam // _EXAM_BATCH),
        size=_EXAM_BATCH, exam=True,
    )  # fmt: skip
    return examine(model.to(device), DataLoader(exam, batch_size=None), device)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    folder: Path = options.out or options.check
    try:
        if options.out:
            train_checkpoint(options, resolve_device(options.device))
        shares = []
        for dtype in (torch.float32, torch.bfloat16):
            found = score(folder, dtype, options)
            print(f"{dtype}: {found}", flush=True)
            shares.append(found.share)
        for fact in file_facts(folder):
            print(f"{fact.name} {fact.size_bytes} {fact.sha256}")
    except (FileNotFoundError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if min(shares) >= options.require else 1


if __name__ == "__main__":
    sys.exit(main())
