"""StepGraphs: which graphs a runner captures of its steps, and in which order it captures them.

Steps run eagerly on the CPU, on request, and if the chosen backend cannot be captured; no graph is
built then. Called by ModelRunner; the graphs themselves are those of `cuda_graphs`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from atom.config import Config
from atom.model_engine.runner.cuda_graphs.decode_graphs import DecodeGraphs
from atom.model_engine.runner.cuda_graphs.graph_pool import GraphPool
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.step_variant import StepVariant
from atom.model_ops.backends import ResolvedOps

logger = logging.getLogger(__name__)

# phase, share done (0 to 1)
Progress = Callable[[str, float], None]


class StepGraphs:
    def __init__(self, config: Config, resolved: ResolvedOps, *, is_gpu: bool) -> None:
        self._resolved = resolved
        self._asked = is_gpu and not config.execution.enforce_eager
        self._widest = StepVariant.captured_by(resolved, config)

    def build(self, steps: StepRunner, pool: tuple[int, int] | None = None) -> DecodeGraphs | None:
        """Build the graphs of decode steps; None if steps run eagerly. pool: as GraphPool's."""
        if not self._asked or self._resolved.uncapturable:
            return None
        prompts = not self._resolved.uncapturable_prompts
        return steps.build_graphs(GraphPool(pool), prompts=prompts, widest=self._widest)

    def compile_ahead(self, steps: StepRunner) -> None:
        """Compile the kernels of the graphs that steps will have."""
        graphs = self.build(steps)
        if graphs is not None:
            graphs.compile_ahead()

    def measured_bytes(self, steps: StepRunner) -> int:
        """Return the bytes that decode graphs will take, measured on the profiling cache."""
        graphs = self.build(steps)
        if graphs is None and self._asked:
            logger.warning(
                "decode steps run without graphs: the chosen backend cannot capture %s",
                ", ".join(self._resolved.uncapturable),
            )
        return 0 if graphs is None else graphs.measure_bytes()


def capture(
    graphs: DecodeGraphs | None,
    progress: Progress,
    warm_up: Callable[[Progress], None] | None = None,
) -> None:
    """Capture the graphs of decodes and then those of prompts. The warm-up runs in between, since
    its prompts would otherwise run in graphs (some steps stay eager)."""
    if graphs is not None:
        graphs.capture(lambda share: progress("capturing decode graphs", share))
    if warm_up is not None:
        warm_up(progress)
    if graphs is not None and graphs.prompts is not None:
        graphs.prompts.capture(lambda share: progress("capturing prompt graphs", share))
