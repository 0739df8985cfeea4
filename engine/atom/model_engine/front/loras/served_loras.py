"""ServedLoras: the adapters by the names that requests use, as the server's half knows them.

Torch-free and without I/O: the list of adapters is decided here and sent to every engine core,
which reads them. A name may be reused; its number never is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from atom.errors import RequestError
from atom.lora_config import LoraConfig, LoraModule, check_lora_name
from atom.model_engine.request import LoRARequest

_FIXED = (
    "adapters are not changed while this server runs; start it with --enable-lora "
    "--allow-runtime-lora-updating"
)


@dataclass(frozen=True, slots=True)
class ServedLora:
    """Describe an adapter that requests may name. root: its source, as given."""

    request: LoRARequest
    root: str

    @property
    def name(self) -> str:
        return self.request.lora_name


class ServedLoras:
    def __init__(self, config: LoraConfig | None, model_name: str) -> None:
        """config: None if no adapters are served; model_name: requests' name of the model."""
        self._config, self._model_name = config, model_name
        self._numbers = itertools.count(1)
        self._by_name: dict[str, ServedLora] = {}
        for module in config.modules if config else ():
            self.add(self.numbered(module))

    def __iter__(self) -> Iterator[ServedLora]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str | None) -> ServedLora | None:
        """Look an adapter up; None for the model's own names, and for unknown ones."""
        return None if name is None else self._by_name.get(name)

    def name_of(self, number: int) -> str | None:
        """Return the name of the served adapter with this number, or None."""
        found = (each.name for each in self if each.request.lora_int_id == number)
        return next(found, None)

    def check_new(self, module: LoraModule, *, in_place: bool) -> None:
        """Raises `RequestError` for an adapter that cannot come, whatever it is. in_place: it may
        take the place of one that has its name."""
        config = self._config
        if config is None or not config.may_load:
            raise RequestError(_FIXED, status=403)
        wrong = check_lora_name(module.name)
        if wrong is not None:
            raise RequestError(f"lora_name: {wrong}", param="lora_name")
        if module.name == self._model_name:
            raise RequestError(
                f"lora_name: {module.name} is the model's own name", param="lora_name"
            )
        if module.name in self._by_name and in_place:
            return
        if module.name in self._by_name:
            raise RequestError(
                f"the adapter {module.name} is served already; unload it first, give another name, "
                "or send load_inplace: true",
                param="lora_name",
            )
        if len(self) >= config.max_cpu_loras:
            raise RequestError(
                f"{len(self)} adapters are served, and --max-cpu-loras has room for no more; "
                "unload one, or start the server with a larger one",
                status=409,
            )

    def numbered(self, module: LoraModule) -> ServedLora:
        """Assign a number to an adapter; it is served once it is added."""
        return ServedLora(LoRARequest(module.name, next(self._numbers)), module.path)

    def add(self, lora: ServedLora) -> None:
        self._by_name[lora.name] = lora

    def remove(self, name: str) -> ServedLora:
        """Remove an adapter's name; requests that have begun continue with it. Raises
        `RequestError` if there is none, or none may be removed."""
        if self._config is None or not self._config.may_load:
            raise RequestError(_FIXED, status=403)
        if name not in self._by_name:
            raise RequestError(
                f"no adapter {name!r} is served; GET /v1/models lists them",
                param="lora_name",
                status=404,
                code="model_not_found",
            )
        return self._by_name.pop(name)
