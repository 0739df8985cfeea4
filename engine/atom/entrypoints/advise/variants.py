"""The flags that name forms of an engine to compare: tiers, drafts, adapters, separate pods."""

from __future__ import annotations

import argparse
from typing import Any

from atom.advisor.errors import AdviceError
from atom.advisor.extras import Adapters, Drafts, Pictures
from atom.advisor.load import Demand
from atom.advisor.question import Variants
from atom.entrypoints.advise.model_configs import HubConfig, config_of, source_of
from atom.entrypoints.advise.running_server import MeasuredLoad
from atom.sizing.engine_support import DRAFT_CHECKPOINT_METHODS
from atom.sizing.errors import SizingError
from atom.sizing.host_tier import GIB
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.drafting import MOST_DRAFTS, usual_drafts

# Of spec.engine.lora: adapters on the device by default, and the most of each number.
_USUAL_SLOTS, _MOST_SLOTS, _MOST_ADAPTERS, _MOST_RANK = 4, 256, 1024, 512
_MOST_IMAGES, _MOST_SIDE = 64, 16_384  # of a prompt, and pixels of an image
_GIGA = 1e9


def variants_of(args: argparse.Namespace, load: Demand, hub_config: HubConfig) -> Variants:
    """Return the forms that the flags ask for. Raises AtomError."""
    sizes = tuple(int(each * GIB) for each in args.kv_offloading_size)
    files = tuple(int(each * GIB) for each in args.kv_disk_size)
    if files and not sizes:
        raise AdviceError(
            f"--kv-disk-size {args.kv_disk_size[0]:g}: files are behind the host's memory; add "
            "--kv-offloading-size"
        )
    return Variants(
        host_sizes=sizes,
        file_sizes=files,
        drafts=_drafts(args, load, hub_config),
        adapters=_adapters(args),
        divides=args.disaggregate == "auto",
        link_bytes_per_second=args.link_gigabits * _GIGA / 8,
        disk_bytes_per_second=args.disk_gigabytes * _GIGA,
    )


def _drafts(args: argparse.Namespace, load: Demand, hub_config: HubConfig) -> tuple[Drafts, ...]:
    methods = list(dict.fromkeys(args.method))
    for flag, value in (("--num-speculative-tokens", args.num_speculative_tokens),
                        ("--acceptance", args.acceptance),
                        ("--draft-model", args.draft_model)):  # fmt: skip
        if value is not None and not methods:
            raise AdviceError(f"{flag} {value}: nothing says who drafts; add --method ngram")
    if args.draft_model is not None and not set(methods) & set(DRAFT_CHECKPOINT_METHODS):
        raise AdviceError(
            f"--draft-model {args.draft_model}: belongs to --method "
            f"{' or '.join(DRAFT_CHECKPOINT_METHODS)}; add one"
        )
    if not methods:
        return ()
    tokens, acceptance = args.num_speculative_tokens, _acceptance(args, load)
    if tokens is not None and not 1 <= tokens <= MOST_DRAFTS:
        raise AdviceError(f"--num-speculative-tokens {tokens}: must be 1 to {MOST_DRAFTS}")
    found = []
    for method in methods:
        model = {}
        if method in DRAFT_CHECKPOINT_METHODS:
            model = _draft_model(method, args.draft_model, hub_config)
        count = tokens or usual_drafts(method)
        found.append(Drafts(method=method, tokens=count, acceptance=acceptance, **model))
    return tuple(found)


def _acceptance(args: argparse.Namespace, load: Demand) -> float:
    """Return the chance of a draft: as it is given, or as a running server's counters have it."""
    given = args.acceptance
    if given is None and isinstance(load, MeasuredLoad):
        given = load.acceptance
    if given is None:
        raise AdviceError(
            f"--method {args.method[0]}: nothing says how many drafts are accepted; add "
            "--acceptance 0.7 (of drafts whose predecessors were), or --from-metrics of a server "
            "that speculates"
        )
    if not 0 <= given <= 1:
        raise AdviceError(f"--acceptance {given:g}: must be from 0 to 1")
    return float(given)


def _draft_model(method: str, name: str | None, hub_config: HubConfig) -> dict[str, Any]:
    if name is None:
        raise AdviceError(
            f"--method {method}: needs a draft model; name its config.json, its folder or "
            "hf://Org/Name with --draft-model"
        )
    config = config_of("--draft-model", name, hub_config)
    try:
        facts = ModelFacts.from_hf_config(config)
    except SizingError as error:
        raise AdviceError(f"--draft-model {name}: {error}") from error
    return {"model": source_of(name), "config": config, "facts": facts}


def pictures_of(text: str | None) -> Pictures | None:
    """Read N:WIDTHxHEIGHT, the images of a prompt; None for none. Raises AdviceError."""
    if text is None:
        return None
    number, _, size = text.partition(":")
    parts = (number, *size.partition("x")[::2])
    if not all(each.isdecimal() for each in parts):
        raise AdviceError(f"--images {text}: must be N:WIDTHxHEIGHT, such as 2:1024x768")
    count, width, height = map(int, parts)
    if (
        not 1 <= count <= _MOST_IMAGES
        or not 1 <= min(width, height) <= max(width, height) <= _MOST_SIDE
    ):
        raise AdviceError(
            f"--images {text}: must be 1 to {_MOST_IMAGES} images with sides of 1 to {_MOST_SIDE} "
            "pixels"
        )
    return Pictures(count, width, height)


def _adapters(args: argparse.Namespace) -> tuple[Adapters, ...]:
    if args.lora is None:
        if args.max_loras:
            raise AdviceError(f"--max-loras {args.max_loras[0]}: add --lora N:RANK")
        return ()
    number, _, rank_text = args.lora.partition(":")
    if not number.isdecimal() or not rank_text.isdecimal():
        raise AdviceError(f"--lora {args.lora}: must be N:RANK, such as 8:16")
    count, rank = int(number), int(rank_text)
    if not 1 <= count <= _MOST_ADAPTERS or not 1 <= rank <= _MOST_RANK:
        raise AdviceError(
            f"--lora {args.lora}: must be 1 to {_MOST_ADAPTERS} adapters of rank 1 to {_MOST_RANK}"
        )
    slots = dict.fromkeys(args.max_loras or [min(count, _USUAL_SLOTS)])
    for each in slots:
        if not 1 <= each <= _MOST_SLOTS:
            raise AdviceError(f"--max-loras {each}: must be 1 to {_MOST_SLOTS}")
    return tuple(Adapters(count, rank, each) for each in slots)
