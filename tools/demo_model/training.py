"""The training loop: AdamW on the samples' weighted cross-entropy, fp32, one learning-rate cycle.

Knows batches and the model; nothing of files or of where the text came from. Called by
tools/train_demo_model.py. The same seed, text, device and torch give the same weights on the CPU.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.demo_model.progress import Progress
from tools.demo_model.qwen3 import Qwen3
from tools.demo_model.samples import Batch


@dataclass(frozen=True, slots=True)
class Recipe:
    steps: int
    peak_learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    tokens: int
    loss: float  # of the assistant's tokens, averaged over the last steps
    accuracy: float  # share of the assistant's tokens predicted exactly, likewise


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine down to nothing."""
    if step < recipe.warmup_steps:
        return recipe.peak_learning_rate * (step + 1) / recipe.warmup_steps
    through = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.peak_learning_rate * 0.5 * (1 + math.cos(math.pi * through))


def _optimiser(model: Qwen3, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_learning_rate, betas=(0.9, 0.95))


def _losses(model: Qwen3, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss to descend, and [loss, accuracy] of the assistant's tokens alone."""
    logits = model(batch.inputs)[0].flatten(0, 1).float()
    targets, weights = batch.targets.flatten(), batch.weights.flatten()
    each = F.cross_entropy(logits, targets, reduction="none")
    total = (each * weights).sum() / weights.sum()
    with torch.no_grad():
        spoken = (weights == 1.0).float()
        right = (logits.argmax(-1) == targets).float()
        count = spoken.sum().clamp(min=1)
        seen = torch.stack(((each * spoken).sum() / count, (right * spoken).sum() / count))
    return total, seen


def train(model: Qwen3, source: Iterator[Batch], recipe: Recipe, device: torch.device) -> Result:
    """Trains in place; `model` must already be on `device`."""
    optimiser = _optimiser(model, recipe)
    progress = Progress("training", recipe.steps, time.perf_counter)
    started, tokens = time.perf_counter(), 0
    recent = torch.zeros(2, device=device)  # read rarely: reading waits for the device
    model.train()
    for step in range(recipe.steps):
        batch = next(source)
        tokens += batch.inputs.numel()
        moved = Batch(*(t.to(device) for t in (batch.inputs, batch.targets, batch.weights)))
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step)
        loss, seen = _losses(model, moved)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimiser.step()
        recent = seen if step == 0 else recent.lerp(seen, 0.05)
        if step % 20 == 19 or step + 1 == recipe.steps:
            note = f"loss {recent[0].item():.3f}, tokens right {recent[1].item():.1%}"
            progress.advance(step + 1, note)
    model.eval()
    seconds = time.perf_counter() - started
    return Result(seconds, tokens, recent[0].item(), recent[1].item())
