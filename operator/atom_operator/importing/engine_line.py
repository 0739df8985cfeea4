"""Flags of vLLM, SGLang and ATOM, to settings of a spec.

The engine's own tables decide: `atom.entrypoints.flags` translates or refuses a flag of another
server with its remedy, the parser of `atom serve` reads its value, and the declaration of the
option names the field of the spec. This module has only the flags whose field has another form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atom.entrypoints.flags.flag_words import kebab, read_words
from atom.sizing.options.flag_values import is_flag
from atom.sizing.options.option import Option
from atom.sizing.options.table import OPTION_OF
from atom_operator.api.v1alpha1.option_field import OPTION_AT, in_spec
from atom_operator.importing.lora_flags import adapter_results
from atom_operator.importing.model_source import (
    Mounts,
    adapter_source,
    model_results,
    served_name,
)
from atom_operator.importing.results import Machine, Result, Setting, left, unneeded
from atom_operator.importing.rules import At
from atom_operator.importing.secret_values import is_secret_name, is_secret_text
from atom_operator.validation.engine_arguments import ArgumentError, engine_parser

_VARIABLE = re.compile(r"\$[({A-Za-z_]")
_FILE_VALUES = {"FILE", "FOLDER", "DIR", "PATH"}
_OPERATORS = "the operator sets it"


@dataclass(frozen=True, slots=True)
class LineContext:
    """Hold the facts beside a line. name: of the AtomDeployment. mounts: locations by the folders
    of the container. model: the location if the object names it apart from the line. is_named: the
    object gives the model's name in the HTTP API, whatever the line calls the model."""

    name: str
    mounts: Mounts = field(default_factory=dict)
    model: str | None = None
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class _Flag:
    """A flag with its value as this version's parser reads it."""

    words: Sequence[str]
    dest: str
    value: Any
    where: str
    context: LineContext

    @property
    def name(self) -> str:
        return self.words[0].partition("=")[0]


def line_results(words: Sequence[At], context: LineContext) -> Iterator[Result]:
    """Translate the words behind the name of a program. A model before the first flag is
    `vllm serve MODEL`."""
    for group in _groups(words):
        texts = [word.text() for word in group]
        where = group[0].where
        if not texts[0].startswith("-"):
            yield from _of_model(texts[0], where, context)
            yield from (left(word.where, "a word without a flag; look it up") for word in group[1:])
        elif any(_VARIABLE.search(text) for text in texts[1:] or texts):
            yield left(
                where,
                f"{_name(texts)}: its value is a variable that this file does not set; set it",
            )
        else:
            yield from _group_results(texts, where, context)


def _groups(words: Sequence[At]) -> Iterator[list[At]]:
    """Divide a line at its flags. An item of a list may hold a flag and its value."""
    group: list[At] = []
    for word in _divided(words):
        text = word.text()
        if is_flag(text) and group:
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _divided(words: Sequence[At]) -> Iterator[At]:
    for word in words:
        text = word.text()
        flag, space, value = text.partition(" ")
        if text.startswith("--") and space and "=" not in flag:
            yield from (At(word.where, flag), At(word.where, value.strip().strip("'\"")))
        elif text.strip():
            yield At(word.where, text)


def _group_results(texts: Sequence[str], where: str, context: LineContext) -> Iterator[Result]:
    read = read_words([kebab(text) for text in texts])
    # A value is not repeated: it may be secret.
    yield from (unneeded(where, f"{_name(texts)}: {note.note}") for note in read.unneeded)
    yield from (left(where, f"{_name(texts)}: {note.note}") for note in read.refused)
    if read.words:
        yield from _own_results(read.words, where, context)


def _own_results(words: Sequence[str], where: str, context: LineContext) -> Iterator[Result]:
    name = _name(words)
    if name in ("--config", "--help", "--models"):
        yield left(where, f"{name}: give the flags of the file as a line of their own")
        return
    if name == "--model":
        value = words[0].partition("=")[2] or (words[1] if len(words) > 1 else "")
        yield from _of_model(value, where, context)
        return
    try:
        # The model stands for itself: each flag is judged alone, so one error hides no other.
        found = engine_parser().parse_args(["--model", "m", *words])
    except ArgumentError as error:
        yield left(where, f"{name}: {_without_values(str(error), words)}")
        return
    action = engine_parser()._option_string_actions[name]
    flag_read = _Flag(words, action.dest, getattr(found, action.dest), where, context)
    yield from _setting(flag_read, action)


def _setting(flag: _Flag, action: Any) -> Iterator[Result]:
    special = _SPECIAL.get(flag.dest)
    option = OPTION_OF.get(flag.dest)
    if special is not None:
        yield from special(flag)
    elif flag.value is None:
        yield unneeded(flag.where, f"{flag.name}: the value is the default")
    elif option is not None and option.crd is not None:
        yield from _of_spec(flag, option, option.crd.path)
    elif is_secret_name(flag.name) or any(map(is_secret_text, flag.words)):
        yield left(
            flag.where,
            f"{flag.name}: the value may be secret and is not taken over; put it into a Secret and "
            "mount it by spec.template",
        )
    elif action.type is Path or action.metavar in _FILE_VALUES:
        yield left(
            flag.where,
            f"{flag.name}: the file is not in the pods; mount it by spec.template and add the flag "
            "to spec.engine.extraArgs",
        )
    else:
        yield Setting("engine.extraArgs", list(flag.words), flag.where)


def _of_spec(flag: _Flag, option: Option, path: str | None) -> Iterator[Result]:
    if path is not None and path in OPTION_AT:
        yield Setting(path, in_spec(option, flag.value), flag.where)
    elif path is None:
        yield unneeded(flag.where, f"{flag.name}: {_OPERATORS}")
    else:
        yield left(flag.where, f"{flag.name}: spec.{path} sets this; write it there")


def _of_model(text: str, where: str, context: LineContext) -> Iterator[Result]:
    if context.model is not None:
        yield unneeded(where, "the object names the model apart from the line")
        return
    yield from model_results(text, where, context.mounts)
    if not context.is_named and not text.startswith(("/", ".")):
        yield Setting("model.servedName", served_name(text), where, is_default=True)


def _names(flag: _Flag) -> Iterator[Result]:
    first, *rest = flag.value
    yield Setting("model.servedName", first, flag.where)
    if rest:
        yield left(
            flag.where, f"{flag.name}: an AtomDeployment has one name; clients have to use {first}"
        )


def _revision(flag: _Flag) -> Iterator[Result]:
    yield Setting("model.revision", flag.value, flag.where)


def _api_key(flag: _Flag) -> Iterator[Result]:
    secret = f"{flag.context.name}-api-key"
    note = (
        f"the key is not printed; kubectl create secret generic {secret} --from-literal=api-key=…"
    )
    yield Setting("engine.apiKeySecretRef", {"name": secret}, flag.where, note)


def _host_tier(flag: _Flag) -> Iterator[Result]:
    size = f"{flag.value:g}Gi" if flag.value % 1 == 0 else f"{round(flag.value * 1024)}Mi"
    yield Setting("cache.kv.hostMemory", size, flag.where)


def _disk_tier(flag: _Flag) -> Iterator[Result]:
    yield Setting("cache.kv.disk.size", f"{round(flag.value * 1024)}Mi", flag.where)


def _device(flag: _Flag) -> Iterator[Result]:
    if flag.value == "cpu":
        yield Machine(flag.where, on_cpu=True)
    else:
        yield unneeded(flag.where, f"{flag.name}: spec.accelerator.type decides; amd by default")


def _drain(flag: _Flag) -> Iterator[Result]:
    yield Setting("rollout.drainSeconds", round(flag.value), flag.where)


def _lora(flag: _Flag) -> Iterator[Result]:
    if flag.value:
        yield Setting("engine.lora", {}, flag.where)
    else:
        yield unneeded(flag.where, f"{flag.name}: adapters are off without spec.engine.lora")


def _adapters(flag: _Flag) -> Iterator[Result]:
    for text in flag.value:
        yield from adapter_results(text, flag.where, flag.context.mounts)


_DRAFT_KEYS = {"method": "method", "num_speculative_tokens": "tokens", "adaptive": "adaptive"}


def _drafts(flag: _Flag) -> Iterator[Result]:
    given = _json_object(flag.value)
    if given is None:
        yield left(flag.where, f"{flag.name}: is no JSON object; correct it")
        return
    for key, value in given.items():
        if key == "model":
            yield from _draft_model(value, flag.where, flag.name)
        elif key in _DRAFT_KEYS:
            yield Setting(f"engine.speculative.{_DRAFT_KEYS[key]}", value, flag.where)
        else:
            yield left(flag.where, f"{flag.name}: {key}: has no field; leave it out")


def _draft_method(flag: _Flag) -> Iterator[Result]:
    yield Setting("engine.speculative.method", flag.value, flag.where)


def _drafts_by(flag: _Flag) -> Iterator[Result]:
    yield from _draft_model(flag.value, flag.where, flag.name)


def _draft_model(text: object, where: str, name: str) -> Iterator[Result]:
    source = adapter_source(text) if isinstance(text, str) else None
    if source is None or source.startswith("pvc://"):
        yield left(where, f"{name}: give the draft model as a hub id, or a folder of the image")
    else:
        yield Setting("engine.speculative.draftModel", source, where)


def _transfer(flag: _Flag) -> Iterator[Result]:
    given = _json_object(flag.value) or {}
    extra = given.get("kv_connector_extra_config")
    size = extra.get("cpu_bytes_to_use") if isinstance(extra, Mapping) else None
    if isinstance(size, (int, float)) and not isinstance(size, bool) and size > 0:
        yield Setting("cache.kv.hostMemory", str(int(size)), flag.where)
        return
    yield left(
        flag.where,
        f"{flag.name}: spec.disaggregation divides prefill and decode, and spec.cache.kv sets the "
        "tiers of the KV cache",
    )


def _events(flag: _Flag) -> Iterator[Result]:
    yield left(flag.where, f"{flag.name}: spec.gateway.prefixAware sets events and the picker")


def _json_object(text: object) -> dict[str, Any] | None:
    try:
        found = json.loads(str(text))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _operators(flag: _Flag) -> Iterator[Result]:
    yield unneeded(flag.where, f"{flag.name}: {_OPERATORS}; the Service has port 8000")


def _listed(flag: _Flag) -> Iterator[Result]:
    yield left(flag.where, f"{flag.name}: spec.adapters lists the adapters; pods follow it")


_SPECIAL: Mapping[str, Callable[[_Flag], Iterator[Result]]] = {
    "served_model_name": _names,
    "revision": _revision,
    "api_key": _api_key,
    "kv_offloading_size": _host_tier,
    "kv_disk_size": _disk_tier,
    "kv_disk_dir": _operators,
    "device": _device,
    "drain_seconds": _drain,
    "enable_lora": _lora,
    "lora_modules": _adapters,
    "allow_runtime_lora_updating": _listed,
    "speculative_config": _drafts,
    "method": _draft_method,
    "draft_model": _drafts_by,
    "kv_transfer_config": _transfer,
    "kv_events_config": _events,
    "host": _operators,
    "port": _operators,
    "server_port": _operators,
    "handover_url": _operators,
    "startup_budget_seconds": _operators,
    "download_dir": _operators,
}


def _name(words: Sequence[str]) -> str:
    return words[0].partition("=")[0]


def _without_values(message: str, words: Sequence[str]) -> str:
    """Return an error of the parser without the values of the line if one may be secret."""
    if is_secret_name(_name(words)) or any(map(is_secret_text, words)):
        return "the value is wrong; atom serve --help=all lists the flags"
    return message
