"""Detect a model's family from the text that its chat template renders, and from its vocabulary.

Each family's parser reads a call that the template writes: the parser that reads it back is the
family's. A template without a place for calls describes their form to the model, together with the
tools. The vocabulary decides last: some marks are tokens only if a model was taught to write them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from atom.answer_parsing.events import CallArguments, CallStart
from atom.answer_parsing.reasoning_parser import THINK
from atom.answer_parsing.tool_parsers import (
    deepseek_v3,
    deepseek_v32,
    gemma4,
    glm45,
    granite,
    harmony,
    hermes,
    hunyuan,
    kimi_k2,
    lfm2,
    minimax_m2,
    mistral,
    nemotron_v2,
    olmo3,
    phi4_mini,
    qwen3_coder,
    seed_oss,
)
from atom.answer_parsing.tool_parsers.formats import (
    AUTO,
    AddedTokens,
    AnswerFormats,
    CallFormat,
    ReasoningFormat,
)
from atom.answer_parsing.tool_parsers.table import (
    CALLS,
    CHANNELS,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    GEMMA4,
    GLM45,
    GRANITE,
    HARMONY,
    HERMES,
    HUNYUAN,
    KIMI_K2,
    LFM2,
    LLAMA3_JSON,
    LLAMA4_PYTHONIC,
    MINIMAX_M2,
    MISTRAL,
    MISTRAL_LIST,
    MISTRAL_MARKS,
    NEMOTRON_V2,
    OLMO3,
    PHI4_MINI,
    QWEN3_CODER,
    REASONING,
    SEED_OSS,
)
from atom.message_shape import TemplateSigns
from atom.message_shape.signs import ARGUMENTS, CALLED, SAID, THOUGHT

# The texts with which a template describes its family's calls, besides the tools. All texts of a
# row must occur; the first such row applies.
_TOLD: Sequence[tuple[Sequence[str], CallFormat]] = (
    ((deepseek_v32.DSML,), DEEPSEEK_V32),
    ((deepseek_v3.CALL, "```json"), DEEPSEEK_V3),
    ((deepseek_v3.CALL,), DEEPSEEK_V31),
    ((kimi_k2.CALL,), KIMI_K2),
    ((minimax_m2.SECTION,), MINIMAX_M2),
    ((seed_oss.CALL,), SEED_OSS),
    ((lfm2.START,), LFM2),
    (("List of tools: ",), LFM2),
    ((gemma4.CALL,), GEMMA4),
    ((nemotron_v2.CALLS,), NEMOTRON_V2),
    ((hermes.OPENING, qwen3_coder.FUNCTION), QWEN3_CODER),
    ((glm45.KEY,), GLM45),
    ((f"to={harmony.FUNCTIONS}",), HARMONY),
    ((mistral.CALLS,), MISTRAL_LIST),
    (("[AVAILABLE_TOOLS]",), MISTRAL_LIST),
    ((olmo3.SECTION,), OLMO3),
    ((f"{hunyuan.CALLS}[",), HUNYUAN),
    ((f"{phi4_mini.CALLS}[",), PHI4_MINI),
    (("<|tool|>", "<|/tool|>"), PHI4_MINI),
    ((granite.CALLS,), GRANITE),
    (("func_name1(",), LLAMA4_PYTHONIC),
    ((hermes.OPENING, '"arguments"'), HERMES),
    (('"parameters": ', "ipython"), LLAMA3_JSON),
)
# A vocabulary has tokens for these marks only if the model was taught to write them.
_TAUGHT = (
    (deepseek_v32.DSML, DEEPSEEK_V32), (kimi_k2.CALL, KIMI_K2), (lfm2.START, LFM2),
    (gemma4.CALL, GEMMA4), (deepseek_v3.CALL, DEEPSEEK_V31), (mistral.CALLS, MISTRAL_LIST),
)  # fmt: skip
_TOOLS = {CALLED: {"type": "object", "properties": {key: {"type": "string"} for key in ARGUMENTS}}}


def resolve_formats(
    calls: str, reasoning: str, signs: TemplateSigns | None, tokens: AddedTokens | None = None
) -> AnswerFormats:
    """Look up formats by their names in `CALL_PARSERS` and `REASONING_PARSERS`. signs: of the chat
    template for conversations with tools; None if a model has none. tokens: of its vocabulary."""
    shown, known = signs or TemplateSigns(), tokens or AddedTokens()
    found = _calls_of(shown, known) if calls == AUTO else CALLS.get(calls)
    if found is MISTRAL or found is MISTRAL_LIST:
        written = mistral.ARGUMENTS in shown.call or shown.tells(mistral.ARGUMENTS)
        newer = written or mistral.ARGUMENTS in known.texts
        found = MISTRAL if newer else MISTRAL_LIST
    thought = _reasoning_of(shown, known) if reasoning == AUTO else REASONING.get(reasoning)
    if found is HARMONY and thought is None:
        thought = CHANNELS  # its content is in a channel too
    marks = [*(found.marks if found else ())]
    if thought is not None:
        pair = thought.marks
        marks += harmony.MARKS if pair is None else pair.texts
    special = {mark: known.special[mark] for mark in marks if mark in known.special}
    return AnswerFormats(found, thought, special)


def _calls_of(signs: TemplateSigns, tokens: AddedTokens) -> CallFormat | None:
    if signs.call:
        return _written_by(signs)
    for texts, family in _TOLD:
        if all(signs.tells(text) for text in texts):
            return family
    return next((family for mark, family in _TAUGHT if mark in tokens.texts), None)


def _written_by(signs: TemplateSigns) -> CallFormat | None:
    """Find whose call this is: the family that writes it so, else one whose parser reads it."""
    families = list(dict.fromkeys(CALLS.values()))
    plain = _unspaced(signs.call)
    for family in (MISTRAL_LIST, *families):
        written = _unspaced(family.notation.written([(CALLED, ARGUMENTS)]))
        if (family.mark or family is HARMONY) and written in plain:
            return family
    # Those whose calls are bare objects read much that is another's.
    families.sort(key=lambda family: not family.marks)
    return next((family for family in families if _reads(family, signs)), None)


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _reads(family: CallFormat, signs: TemplateSigns) -> bool:
    """Return whether the family's parser reads the call; calls without a mark must have no text
    before them."""
    parser = family.parser(_TOOLS)
    marked = bool(family.mark)
    text = signs.call if marked else signs.bare_call
    events = [*parser.feed(text), *parser.finish(ended=True)]
    if not marked and not (events and isinstance(events[0], CallStart)):
        return False
    names = [event.name for event in events if isinstance(event, CallStart)]
    written = "".join(event.text for event in events if isinstance(event, CallArguments))
    try:
        return names == [CALLED] and json.loads(written) == ARGUMENTS
    except ValueError:
        return False


def _reasoning_of(signs: TemplateSigns, tokens: AddedTokens) -> ReasoningFormat | None:
    if f"{harmony.CHANNEL}analysis" in signs.answer or harmony.CHANNEL in signs.asked:
        return CHANNELS
    for name in ("seed_oss", "gemma4", "mistral", "apriel"):
        marks = REASONING[name].marks
        assert marks is not None
        if marks.closing in signs.asked or _within(signs.answer, marks.opening, marks.closing):
            return REASONING[name]
    if (
        THINK.closing in signs.asked
        or THINK.closing in signs.answer
        or THINK.opening in signs.asked
    ):
        return next(
            (
                REASONING[name]
                for name in ("hunyuan_a13b", "ernie45")
                if _wraps_content(REASONING[name], signs)
            ),
            REASONING["qwen3"],
        )
    taught = {MISTRAL_MARKS.opening, MISTRAL_MARKS.closing} <= tokens.texts
    return REASONING["mistral"] if taught else None


def _within(text: str, opening: str, closing: str) -> bool:
    """Return whether the text has reasoning between the marks."""
    before, found, behind = text.partition(THOUGHT)
    return bool(found) and opening in before and closing in behind


def _wraps_content(reasoning: ReasoningFormat, signs: TemplateSigns) -> bool:
    """Return whether an answer has marks around its content, or the prompt asks for them."""
    assert reasoning.marks is not None
    opening, closing = reasoning.marks.content
    before, found, behind = signs.answer.partition(SAID)
    written = bool(found) and opening in before and closing in behind
    return written or (opening in signs.asked and closing in signs.asked)
