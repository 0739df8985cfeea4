"""ServerNames: the names of all models and adapters of one server, each of which means one.

Requests choose by the name alone, so no adapter may take the name of another model of the server,
or of another model's adapter. Shared by the states of the models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from atom.errors import RequestError

_Names = Callable[[], Sequence[str]]


class ServerNames:
    def __init__(self) -> None:
        self._models: list[_Names] = []
        self._coming: dict[str, _Names] = {}

    def add(self, names: _Names) -> None:
        """Add a model. names: lists its own and its adapters' as they are now."""
        self._models.append(names)

    @contextlib.contextmanager
    def coming(self, name: str, of: _Names) -> Iterator[None]:
        """Keep a name for an adapter that is being loaded. of: the model's, as it was added. Raises
        `RequestError` (409) where another model has it, or is about to."""
        others = [names for names in self._models if names != of]
        if any(name in names() for names in others) or self._coming.get(name, of) != of:
            raise RequestError(
                f"lora_name: {name} is a name of another model of this server; give the adapter "
                "another, or unload the one that has it",
                param="lora_name",
                status=409,
            )
        before = self._coming.get(name)
        self._coming[name] = of
        try:
            yield
        finally:
            if before is None:
                del self._coming[name]
