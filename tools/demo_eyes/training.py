"""The training loop and the exam: cross-entropy of the answers' tokens, one learning-rate cycle.

Matrices are trained by Muon (https://kellerjordan.github.io/posts/muon/), which needs some third of
the pictures that AdamW needs here; tables and norms by AdamW. Knows batches and the model; nothing
of files. The same seed, device and torch give the same weights, with any number of workers.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.demo_eyes.model import Eyes
from tools.demo_eyes.questions import Subject
from tools.demo_eyes.samples import IGNORED, Batch
from tools.demo_model.progress import Progress


@dataclass(frozen=True, slots=True)
class EyesRecipe:
    """Describe a training. steps: of the optimiser. matrix_rate, table_rate: peaks of learning
    rates."""

    steps: int
    matrix_rate: float = 4e-3
    table_rate: float = 3e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def share(self, step: int) -> float:
        """Return the share of the peak rate: a linear warm-up, then a cosine down to nothing."""
        warmup = min(40, self.steps // 10 + 1)
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))


def _optimisers(model: Eyes, recipe: EyesRecipe) -> list[torch.optim.Optimizer]:
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_table = "embed_tokens" in name or "lm_head" in name
        (matrices if parameter.dim() == 2 and not is_table else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            others, lr=recipe.table_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        ),
    ]  # fmt: skip


def train(model: Eyes, batches: Iterable[Batch], recipe: EyesRecipe, device: torch.device) -> float:
    """Train in place; `model` must be on `device`. Returns the seconds that it took."""
    optimisers = _optimisers(model, recipe)
    peaks = [group["lr"] for each in optimisers for group in each.param_groups]
    progress = Progress("training", recipe.steps, time.perf_counter)
    started = time.perf_counter()
    recent = torch.zeros(2, device=device)  # read rarely: reading waits for the device
    model.train()
    for step, batch in enumerate(batches):
        groups = [group for each in optimisers for group in each.param_groups]
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * recipe.share(step)
        targets = batch.targets.to(device)
        logits = model(batch.inputs.to(device), batch.pixels.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        for each in optimisers:
            each.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        for each in optimisers:
            each.step()
        seen = torch.stack((loss.detach(), _right(logits, targets).float().mean()))
        recent = seen if step == 0 else recent.lerp(seen, 0.05)
        if step % 20 == 19 or step + 1 == recipe.steps:
            note = f"loss {recent[0].item():.4f}, answers right {recent[1].item():.1%}"
            progress.advance(step + 1, note)
    model.eval()
    return time.perf_counter() - started


def _right(logits: Tensor, targets: Tensor) -> Tensor:
    """Return, for each row, whether the most likely token is right at every place of an answer:
    then greedy decoding writes the answer and ends."""
    return ((logits.argmax(-1) == targets) | (targets == IGNORED)).all(-1)


@dataclass(frozen=True, slots=True)
class Score:
    """Count answers by subject. right: as a whole. asked: all."""

    right: Counter[Subject]
    asked: Counter[Subject]

    @property
    def share(self) -> float:
        """Return the share of right answers."""
        return self.right.total() / max(1, self.asked.total())

    def __str__(self) -> str:
        each = ", ".join(
            f"{subject.value} {self.right[subject]} of {count}"
            for subject, count in sorted(self.asked.items(), key=lambda item: item[0].value)
        )
        return f"{self.right.total()} of {self.asked.total()} right ({self.share:.1%}): {each}"


@torch.inference_mode()
def examine(model: Eyes, batches: Iterable[Batch], device: torch.device) -> Score:
    """Count whole answers, with their ends, that greedy decoding gives."""
    dtype = next(model.parameters()).dtype
    score = Score(Counter(), Counter())
    for batch in batches:
        logits = model(batch.inputs.to(device), batch.pixels.to(device, dtype))
        right = _right(logits, batch.targets.to(device)).tolist()
        for subject, is_right in zip(batch.subjects, right, strict=True):
            if subject is not None:
                score.asked[subject] += 1
                score.right[subject] += is_right
    return score
