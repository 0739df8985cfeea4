"""LoraConfig: whether a model is served with LoRA adapters, which adapters, and their limits.

`--lora-modules` has vLLM's two forms, name=path and a JSON object. Torch-free; the command line
uses this module. `lora_checkpoint` reads an adapter's own files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from atom.errors import ConfigError
from atom.sizing.options.lora import DEFAULT_LORA_RANK, LoraFlags
from atom.sizing.options.option import range_problems

# No controls, marks of direction, markup or parts of paths: names are shown, and are labels.
_NAME = re.compile(r"(?=.{1,256}\Z)[\w:@+=~-][\w.:@+=~-]*(/[\w:@+=~-][\w.:@+=~-]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraModule:
    """An adapter by the name that requests use. path: its folder, or a hub id, as given; folder:
    the local folder, once it was found."""

    name: str
    path: str
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """The adapters that a server may have. modules: the adapters loaded at start, numbered from 1
    in their order; max_loras: adapters that the rows of one step may use; max_rank: of their
    matrices; max_cpu_loras: adapters kept in the host's memory; may_load: adapters may be loaded
    and unloaded while the model serves; experts: adapters may have matrices for experts, which take
    the most memory."""

    modules: tuple[LoraModule, ...] = ()
    max_loras: int = 1
    max_rank: int = DEFAULT_LORA_RANK
    max_cpu_loras: int = 1
    may_load: bool = False
    experts: bool = False


class _Module(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    path: str
    base_model_name: str | None = None


def lora_config(flags: LoraFlags, model_names: Sequence[str] = ()) -> LoraConfig | None:
    """Put the flags together; None if adapters are not enabled. model_names: the names by which
    requests select the base model. Raises `ConfigError`."""
    numbers = (flags.max_loras, flags.max_rank, flags.max_cpu_loras)
    if not flags.enabled:
        if (
            flags.modules
            or flags.may_load
            or flags.experts
            or any(number is not None for number in numbers)
        ):
            raise ConfigError(
                "--lora-modules, --max-loras, --max-lora-rank, --max-cpu-loras, --lora-experts and "
                "--allow-runtime-lora-updating need --enable-lora; add it, or leave them out"
            )
        return None
    modules = tuple(map(_module, flags.modules or ()))
    _check_names("--lora-modules", modules)
    for module in modules:
        if module.name in model_names:
            raise ConfigError(
                f"--lora-modules: {module.name} is the model's own name, so no request could ask "
                "for the adapter; give it another, or the model by --served-model-name"
            )
    max_loras = 1 if flags.max_loras is None else flags.max_loras
    kept = max(max_loras, len(modules)) if flags.max_cpu_loras is None else flags.max_cpu_loras
    for problem in range_problems(flags, by_flag=True):
        raise ConfigError(problem)
    if kept < max_loras:
        raise ConfigError(f"--max-cpu-loras must be at least {max_loras}, got {kept}")
    if len(modules) > kept:
        raise ConfigError(
            f"--lora-modules names {len(modules)} adapters, and --max-cpu-loras {kept} is how many "
            "are kept; raise it"
        )
    return LoraConfig(
        modules=modules,
        max_loras=max_loras,
        max_rank=DEFAULT_LORA_RANK if flags.max_rank is None else flags.max_rank,
        max_cpu_loras=kept,
        may_load=flags.may_load,
        experts=flags.experts,
    )


def read_modules_file(file: Path) -> tuple[LoraModule, ...]:
    """Read the adapters of `--lora-modules-file`, a JSON list of names and paths. Raises
    `ConfigError`."""
    where = f"--lora-modules-file {file}"
    try:
        said = msgspec.json.decode(file.read_bytes(), type=list[_Module])
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'{where}: {error}; give a list such as [{{"name": "sql", "path": "/adapters/sql"}}]'
        ) from None
    modules = tuple(LoraModule(name=each.name, path=each.path) for each in said)
    _check_names(where, modules)
    return modules


def check_lora_name(name: str) -> str | None:
    """Return the error in an adapter's name, or None if the name is valid."""
    if _NAME.fullmatch(name):
        return None
    return (
        "an adapter's name has 1 to 256 letters, digits and characters of . _ : @ + = ~ - and may "
        "have parts, as org/name; none of them begins with a dot"
    )


def _check_names(where: str, modules: Iterable[LoraModule]) -> None:
    seen: set[str] = set()
    for module in modules:
        if module.name in seen:
            raise ConfigError(f"{where}: {module.name} stands there twice; give each its own name")
        seen.add(module.name)


def _module(text: str) -> LoraModule:
    if text.lstrip().startswith("{"):
        try:
            said = msgspec.json.decode(text, type=_Module)
        except msgspec.DecodeError as error:
            raise ConfigError(f"--lora-modules {text}: {error}") from None
        name, path = said.name, said.path
    else:
        name, _, path = text.partition("=")
    wrong = check_lora_name(name)
    if wrong or not path:
        raise ConfigError(
            f"--lora-modules {text}: {wrong or 'no path'}; give name=path, such as "
            'sql=/adapters/sql, or {"name": "sql", "path": "/adapters/sql"}'
        )
    return LoraModule(name=name, path=path)
