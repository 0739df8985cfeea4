"""Command-line flags of the engine: argparse → EngineOptions → Config.

The flags are those of the options table, `atom.sizing.options.table`. Torch-free, so that the
operator's tests can parse the arguments it renders. Both spellings of a flag work: --max-model-len
and --max_model_len.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from atom.config import Config, EngineOptions, build_config
from atom.config_checks import check_options
from atom.entrypoints.flags.client_weights import read_client_weights
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.flags.kv_transfer_config import kv_tier_options
from atom.entrypoints.flags.upstream_switches import is_switched_on, warn_of_switches
from atom.eplb_config import EPLBConfig, eplb_config
from atom.errors import ConfigError
from atom.kv_events_config import kv_events_config
from atom.kv_transfer_config.document import kv_transfer_config
from atom.kv_transfer_config.values import KVTransferConfig
from atom.lora_config import LoraConfig, lora_config
from atom.sizing.options.cache import CacheOptions, KVTransferFlags
from atom.sizing.options.drafting import SpeculationFlags
from atom.sizing.options.execution import ExecutionOptions, SleepOptions
from atom.sizing.options.images import ImageOptions
from atom.sizing.options.kv_tiers import KVTierOptions
from atom.sizing.options.lora import LoraFlags
from atom.sizing.options.model import CheckpointOptions, ModelOptions
from atom.sizing.options.option import Companion, Option, options_of
from atom.sizing.options.parallelism import (
    EPLBFlags,
    HealthOptions,
    NodePlace,
    ParallelOptions,
)
from atom.sizing.options.scheduling import SchedulerOptions
from atom.sizing.options.table import GROUPS
from atom.speculative_config import SpeculativeConfig, speculative_config

logger = logging.getLogger(__name__)

T = TypeVar("T")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag of every option, with its default."""
    if isinstance(parser, FlagParser):
        parser.takes_model = True
    for group in GROUPS:
        section = parser.add_argument_group(group.title)
        for each in group.options:
            _add_option(section, each)
            for companion in each.flag.then:
                _add_companion(section, companion)


def _add_option(section: Any, option: Option) -> None:
    flag = option.flag
    names = [option.flag_name] if flag.short is None else [option.flag_name, flag.short]
    shown = {} if flag.metavar is None else {"metavar": flag.metavar}
    section.add_argument(
        *names, dest=option.name, default=_default(option), help=option.text, **shown,
        **_form(option),
    )  # fmt: skip


def _form(option: Option) -> dict[str, Any]:
    """Return the words that a flag takes, as arguments of argparse."""
    if option.flag.many is not None:
        return {"nargs": "+"} if option.flag.many == "words" else {"action": "append"}
    if option.flag.read is not None:
        return {"type": option.flag.read}
    if option.choices:
        return {"choices": option.choices}
    if option.value_type is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {} if option.value_type is str else {"type": option.value_type}


def _default(option: Option) -> Any:
    if option.variable is not None:
        if option.value_type is bool:
            return is_switched_on(os.environ, option.variable)
        return os.environ.get(option.variable, option.default)
    if isinstance(option.default, Mapping):  # which `_READERS` makes of the flag's words
        return [] if option.flag.many == "append" else None
    return option.default


def _add_companion(section: Any, companion: Companion) -> None:
    form: dict[str, Any] = {} if companion.read is None else {"type": companion.read}
    if companion.dest is None:
        form["default"] = None
    else:  # the option's own flag gives the default
        form |= {"dest": companion.dest, "default": argparse.SUPPRESS}
    section.add_argument(
        companion.name, metavar=companion.metavar, help=companion.text, **form
    )  # fmt: skip


def options_from_args(args: argparse.Namespace) -> EngineOptions:
    """Raises `ConfigError` on a malformed --op-backend, or speculation that there is not. Warns of
    variables without effect."""
    warn_of_switches(os.environ)
    for flag in args.unneeded_flags:
        logger.warning("the flag %s has no effect: %s", flag.flag, flag.note)
    return _options(args)


def refusal_of(args: argparse.Namespace) -> str | None:
    """Return the error with which an engine ends at these flags before it opens the model; None if
    it opens the model."""
    try:
        check_options(_options(args))
    except ConfigError as error:
        return str(error)
    return None


def _options(args: argparse.Namespace) -> EngineOptions:
    return EngineOptions(
        checkpoint=part_from_args(CheckpointOptions, args),
        model=part_from_args(ModelOptions, args),
        scheduler=part_from_args(SchedulerOptions, args),
        cache=part_from_args(CacheOptions, args),
        sleep=part_from_args(SleepOptions, args),
        execution=part_from_args(ExecutionOptions, args),
        images=part_from_args(ImageOptions, args),
        parallel=part_from_args(ParallelOptions, args),
        nodes=part_from_args(NodePlace, args),
        health=part_from_args(HealthOptions, args),
        tier=kv_tier_options(part_from_args(KVTierOptions, args), args.kv_transfer_config),
        kv_events=kv_events_config(args.kv_events_config),
        kv_transfer=_transfer(args),
        lora=_lora(args),
        balance=_balance(args),
        speculative=_speculation(args),
    )


def part_from_args(kind: type[T], args: argparse.Namespace) -> T:
    """Return the part of the options that `kind` declares. Raises `ConfigError` on a malformed
    --op-backend, or on a file that cannot be read."""
    values = {each.attribute: _value(each, args) for each in options_of(kind)}
    return kind(**values)


def _value(option: Option, args: argparse.Namespace) -> Any:
    value = getattr(args, option.name)
    reader = _READERS.get(option.name)
    return value if reader is None else reader(value)


def _lora(args: argparse.Namespace) -> LoraConfig | None:
    names = args.served_model_name or (args.model.rstrip("/"),)
    return lora_config(part_from_args(LoraFlags, args), names)


def _transfer(args: argparse.Namespace) -> KVTransferConfig | None:
    given = part_from_args(KVTransferFlags, args)
    return kv_transfer_config(
        given.kv_transfer_config,
        timeout_seconds=given.kv_transfer_timeout,
        max_held_fraction=given.kv_transfer_max_held_fraction,
    )


def _balance(args: argparse.Namespace) -> EPLBConfig | None:
    given = part_from_args(EPLBFlags, args)
    return eplb_config(given.enable_eplb, given.eplb_config)


def _speculation(args: argparse.Namespace) -> SpeculativeConfig | None:
    given = part_from_args(SpeculationFlags, args)
    return speculative_config(
        given.speculative_config, given.method, given.num_speculative_tokens, given.draft_model
    )


def config_from_args(args: argparse.Namespace) -> Config:
    """Open the model. Raises `ConfigError` or `ModelError`."""
    return build_config(options_from_args(args))


def _op_backends(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        op, equals, name = pair.partition("=")
        if not (op and equals and name):
            raise ConfigError(f"--op-backend {pair}: must be OP=NAME, such as sample=torch_ref")
        found[op] = name
    return found


def _first(names: Sequence[str] | None) -> str | None:
    return names[0] if names else None


# Values that are made of all words of a flag, or of a file that it names.
_READERS: dict[str, Callable[[Any], Any]] = {
    "op_backends": _op_backends,
    "client_weights": read_client_weights,
    "served_model_name": _first,
}
