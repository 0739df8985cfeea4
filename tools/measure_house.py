"""Measure how easily the project is read, and refuse where a figure is over its limit.

    python -m tools.measure_house [--guesses] [--hops]

*Guesses* to a concept: how many files a reader opens who types the field's words into an editor's
search of file names. Files whose path has all the words are opened as a fuzzy finder lists them,
the shortest name first. Where the right one is not among them, files are opened by how many of
their functions and classes are named by the words, then by how often their text has them; the
search of names then counts as one guess more.

*Files of drafts*: files of the engine whose text says `draft` eight times or more. Other figures
are those of the checks that `make lint` runs. *Hops* are counted by tools/request_hops.py, which
starts an engine. Exits with 1 where a figure is over its limit.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import check_dead_code, check_docstrings, check_file_size, check_kernels

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("engine/atom", "operator/atom_operator")
DRAFT_WORDS = 8
MOST_GUESSES = 1.4
MOST_DRAFT_FILES = 20

# concept: (the words as a reader types them, the file that holds it). They are the words of papers,
# of other engines and of Kubernetes, not those that files here happen to have.
CONCEPTS = {
    "min-p": ("min_p", "model_ops/backends/triton_ops/sampling/top_k_top_p_min_p.py"),
    "admission, 429": ("admission", "model_engine/front/admission.py"),
    "hash of a prefix": ("prefix", "model_engine/blocks/prefix_search.py"),
    "preemption": ("preempt", "model_engine/scheduler.py"),
    "stop strings": ("stop strings", "model_engine/front/stop_strings.py"),
    "n-gram drafts": ("ngram", "speculation/ngram.py"),
    "EAGLE head": ("eagle", "models/draft_models/eagle3.py"),
    "MTP layers": ("mtp", "models/draft_models/mtp.py"),
    "verification of drafts": ("verify", "model_engine/runner/speculation/verify_step.py"),
    "acceptance of drafts": ("accept", "speculation/acceptance.py"),
    "MLA, absorbed decode": ("mla decode", "model_ops/backends/triton_ops/attention/mla_decode.py"),
    "routing bias of DeepSeek": ("correction bias", "model_ops/moe/router.py"),
    "dequantisation of MXFP4": ("dequant", "model_ops/quantised/dequantise.py"),
    "all-reduce fused with a norm": (
        "allreduce norm", "model_ops/backends/triton_ops/allreduce_norm.py",
    ),
    "dummy batch of DP": ("dummy batch", "model_engine/runner/step_runner.py"),
    "EPLB": ("eplb", "model_ops/expert_parallel/eplb.py"),
    "low-batch MoE": ("gemv", "model_ops/backends/triton_ops/moe/gemv.py"),
    "flash-decoding": ("split kv", "model_ops/backends/triton_ops/attention/split_kv.py"),
    "mask of a sliding window": ("mask", "sizing/mask_rule.py"),
    "chunked prefill": ("chunked prefill", "model_engine/scheduler.py"),
    "rotary embedding": ("rotary", "model_ops/rotary_embedding.py"),
    "budget of the KV cache": ("kv budget", "sizing/kv_budget.py"),
    "capacity of a plan": ("capacity", "plan/capacity.py"),
    "rollout without extra GPUs": ("rollout", "plan/rollout.py"),
    "remedies of a misfit": ("remed", "plan/remedies.py"),
    "KEDA's ScaledObject": ("scaledobject", "children/autoscaling/keda_scaledobject.py"),
    "LeaderWorkerSet": ("leader worker set", "children/leader_worker_set.py"),
    "leader election": ("elect", "leadership/leader_election.py"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure. `most`: its limit, None where it is only told."""

    name: str
    value: float
    most: float | None

    @property
    def is_over(self) -> bool:
        return self.most is not None and self.value > self.most

    def __str__(self) -> str:
        limit = "" if self.most is None else f" (at most {self.most:g})"
        return f"{self.name}: {self.value:g}{limit}{'  <-- over' if self.is_over else ''}"


@cache
def sources() -> dict[str, str]:
    """Read every source of engine and operator, by its path below its package."""
    return {
        path.relative_to(ROOT / folder).as_posix(): path.read_text(encoding="utf-8")
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def guesses(words: str, target: str, files: dict[str, str]) -> int:
    """Count the files that are opened up to `target` by a reader who types `words`."""
    parts = words.split()
    named = sorted(
        (path for path in files if all(part in path for part in parts)),
        key=lambda path: (len(Path(path).stem), path),
    )
    if target in named:
        return named.index(target) + 1
    spoken = re.compile("[ _-]?".join(parts), re.IGNORECASE)
    defined = re.compile(rf"^ *(?:async )?(?:def|class) \w*{spoken.pattern}", re.I | re.M)
    order = sorted(
        files,
        key=lambda path: (-len(defined.findall(files[path])), -len(spoken.findall(files[path]))),
    )
    return 1 + order.index(target) + 1


def measure() -> list[Figure]:
    """Take every figure that needs no engine."""
    files = sources()
    found = [guesses(word, target, files) for word, target in CONCEPTS.values()]
    fragments, documented = check_docstrings.fragment_share(list(files.values()))
    kernels = [
        each
        for path in sorted(check_kernels.KERNELS.rglob("*.py"))
        for each in check_kernels.measure(str(path), path.read_text(encoding="utf-8"))
    ]
    drafts = sum(
        len(re.findall("draft", path.read_text(encoding="utf-8"))) >= DRAFT_WORDS
        for path in (ROOT / SOURCES[0]).rglob("*.py")
    )
    floors = Counter(str(Path(path).parent) for path in check_file_size.python_files())
    terms = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return [
        Figure("guesses to a concept", round(sum(found) / len(found), 2), MOST_GUESSES),
        Figure("fragments of docstrings, %", round(100 * fragments / documented, 1), 5),
        Figure("comments of kernels, %", round(100 * check_kernels.share(kernels), 1), None),
        Figure("lines of the longest kernel", max(each.lines for each in kernels), 90),
        Figure("parameters of the widest kernel", max(each.parameters for each in kernels), 24),
        Figure("files of drafts", drafts, MOST_DRAFT_FILES),
        Figure("dead definitions", len(check_dead_code.find()), 0),
        Figure("modules of the largest floor", max(floors.values()), 25),
        Figure("rows of the glossary", len(re.findall(r"^\| (?!word|-)", terms, re.M)), 35),
        Figure("lines of the changelog", len((ROOT / "CHANGELOG.md").read_text().splitlines()), 80),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--guesses", action="store_true", help="print those of each concept")
    parser.add_argument("--hops", action="store_true", help="count a chat request's hops, too")
    args = parser.parse_args()
    figures = measure()
    if args.hops:
        from tools import request_hops

        hops = len(request_hops.record_chat().hops)
        figures.append(Figure("hops of a chat request", hops, request_hops.MOST_HOPS))
    print("\n".join(map(str, figures)))
    if args.guesses:
        for concept, (word, target) in CONCEPTS.items():
            print(f"{guesses(word, target, sources()):3}  {concept} ({word}): {target}")
    return int(any(each.is_over for each in figures))


if __name__ == "__main__":
    sys.exit(main())
