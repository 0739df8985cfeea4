"""A name means one model or adapter of a server, also while adapters are being loaded."""

from __future__ import annotations

import pytest

from atom.entrypoints.openai.server_names import ServerNames
from atom.errors import RequestError


class Model:
    def __init__(self, *names: str) -> None:
        self.all = list(names)

    def names(self) -> list[str]:
        return self.all


def test_no_adapter_takes_another_models_name() -> None:
    server, first, second = ServerNames(), Model("a"), Model("b", "adapter")
    for model in (first, second):
        server.add(model.names)
    for name in ("b", "adapter"):
        with (
            pytest.raises(RequestError, match="another model of this server") as refused,
            server.coming(name, first.names),
        ):
            pass
        assert refused.value.status == 409
    with server.coming("new", first.names):
        first.all.append("new")
    with pytest.raises(RequestError), server.coming("new", second.names):
        pass
    first.all.remove("new")
    with server.coming("new", second.names):
        pass


def test_a_name_is_kept_while_its_adapter_is_loaded() -> None:
    server, first, second = ServerNames(), Model("a"), Model("b")
    for model in (first, second):
        server.add(model.names)
    with server.coming("sql", first.names):
        with pytest.raises(RequestError), server.coming("sql", second.names):
            pass
        with server.coming("sql", first.names):  # the model itself refuses the second
            pass
        with pytest.raises(RequestError), server.coming("sql", second.names):
            pass
    with server.coming("sql", second.names):
        pass


def test_a_server_of_one_model_has_no_others() -> None:
    with ServerNames().coming("sql", Model("a").names):
        pass
