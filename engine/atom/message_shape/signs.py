"""TemplateSigns: the text that a chat template writes for calls, tools and reasoning, which
identifies its family.

The signs are rendered for the probes and not read from the source: a template may assemble a mark
from pieces, or contain one that it never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atom.message_shape import probes
from atom.message_shape.probes import Probe
from atom.message_shape.shape import MessageShape, Shown

# The template's text, with more variables; None if it raises.
RenderWith = Callable[[Shown, Mapping[str, Any]], str | None]
# The variables by which templates switch reasoning on or off.
THINKING: Mapping[str, Any] = {"thinking": True, "enable_thinking": True}
_SWITCHED_OFF: Mapping[str, Any] = {"thinking": False, "enable_thinking": False}


@dataclass(frozen=True, slots=True)
class TemplateSigns:
    """Renderings of a template. call: a call of `CALLED` with `ARGUMENTS`, after the question, or
    "" for a template without a place for calls; bare_call: without the head of the assistant's
    turn. told: a prompt with tools; plain: without. answer: an answer with its reasoning. asked:
    prompts of a question, with thinking on and off."""

    call: str = ""
    bare_call: str = ""
    told: str = ""
    plain: str = ""
    answer: str = ""
    asked: str = ""

    def tells(self, text: str) -> bool:
        """Return whether the prompt with tools has this text more often than the one without."""
        return self.told.count(text) > self.plain.count(text)


CALLED = probes.NAME
ARGUMENTS = {probes.KEY: probes.VALUE}
THOUGHT, SAID = probes.THOUGHT, probes.SAID


def read_signs(render: RenderWith, shape: MessageShape) -> TemplateSigns:
    """Render the probes of a template whose shape is known."""

    def text(probe: Probe, more: Mapping[str, Any]) -> str:
        return render(shape.shown(probe.messages, probe.tools), more) or ""

    question = Probe([probes.ASKED])
    with_tools = Probe([probes.ASKED], tools=probes.TOOLS)
    thought = {"reasoning_content": THOUGHT, "thinking": THOUGHT, "reasoning": THOUGHT}
    answered = Probe([probes.ASKED, probes.said("assistant", SAID, **thought)])
    prompts = [text(question, more) for more in ({}, THINKING, _SWITCHED_OFF)]
    answers = [text(answered, more).partition(probes.TEXT)[2] for more in ({}, THINKING)]
    told = text(with_tools, {})
    call = bare = ""
    if shape.calls.has_place:
        whole = text(probes.whole_call(), {})
        whole = whole.partition(probes.RESULT)[0]
        begun = _shared(told, whole)
        call, bare = whole.partition(probes.TEXT)[2], whole[begun:]
    asked = "\n".join(dict.fromkeys(prompts))
    return TemplateSigns(call, bare, told, prompts[0], "\n".join(answers), asked)


def _shared(first: str, second: str) -> int:
    """Count the characters that two texts begin with alike."""
    pairs = zip(first, second, strict=False)
    return next(
        (index for index, (one, other) in enumerate(pairs) if one != other),
        min(len(first), len(second)),
    )
