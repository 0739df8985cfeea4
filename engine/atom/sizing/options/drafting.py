"""Flags of speculative decoding, which `SpeculativeConfig` is made of."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.engine_support import SUPPORTED_DRAFT_METHODS
from atom.sizing.options.option import CrdField, Flag, Range, option

MOST_DRAFTS = 16
# Drafted by look-up, which costs next to nothing, or by a model that is good at more than one.
USUAL_DRAFTS = 5
# Layers are trained for one draft.
_OF_ONE_DRAFT = ("mtp", "eagle3")
USUAL_DRAFTS_TEXT = f"1 with {' and '.join(_OF_ONE_DRAFT)}, else {USUAL_DRAFTS}"


def usual_drafts(method: str) -> int:
    """Return the number of drafts of a method in forms and manifests that name none."""
    return 1 if method in _OF_ONE_DRAFT else USUAL_DRAFTS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationFlags:
    """The flags of `SpeculativeConfig`. speculative_config: a JSON document, which may hold the
    values of the other flags too; None for a flag that is not given."""

    speculative_config: str | None = option(
        None,
        'propose tokens and verify them together, such as {"method": "ngram", '
        '"num_speculative_tokens": 5}; also model, prompt_lookup_min, prompt_lookup_max, '
        "suffix_decoding_max_tree_depth, suffix_decoding_max_cached_requests, "
        "suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob and adaptive. "
        "Changes no token",
        flag=Flag(metavar="JSON"),
        crd=CrdField("engine.speculative"),
    )
    method: str | None = option(
        None,
        "who drafts: ngram, the text so far; suffix, also earlier answers; mtp, the checkpoint's "
        "own draft layer; eagle3, a layer made for the model; draft_model, a model of the same "
        "vocabulary",
        flag=Flag(metavar=f"{{{','.join(SUPPORTED_DRAFT_METHODS)}}}"),
        crd=CrdField("engine.speculative"),
    )
    draft_model: str | None = option(
        None,
        "folder or hub id of the checkpoint that drafts, of methods eagle3 and draft_model",
        crd=CrdField("engine.speculative.draftModel"),
    )
    num_speculative_tokens: int | None = option(
        None,
        "most drafts of a row and step",
        within=Range(1, MOST_DRAFTS),
        crd=CrdField(
            "engine.speculative.tokens",
            f"Tokens drafted per sequence and step, at most; default: {USUAL_DRAFTS_TEXT}.",
        ),
    )
