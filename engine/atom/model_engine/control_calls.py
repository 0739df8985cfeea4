"""ControlCalls: the control calls that clients make of an engine core, and their answers.

Finds the call by its name among those that the configuration serves, lets the core carry it out,
and sends the result, or the error, to the client that asked. A result may come after later steps.
Owned by EngineCore; knows no scheduler and no runner.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import msgspec

from atom.config import Config
from atom.model_engine.control import CONTROLS, CoreControls
from atom.model_engine.wire.core_sockets import CoreSockets
from atom.model_engine.wire.engine_protocol import UtilityBody, UtilityResponseBody, client_of

logger = logging.getLogger(__name__)


class ControlCalls:
    def __init__(self, config: Config, sockets: CoreSockets) -> None:
        self._sockets = sockets
        self._served = {each.name: each for each in CONTROLS if each.is_served(config)}

    def answer(self, call: UtilityBody, core: CoreControls) -> None:
        """Let the core carry out a call, and answer it. An error ends the call alone."""
        client = client_of(call.call_id)
        if not 0 <= client < self._sockets.clients:
            logger.warning("refused call %d: of no client of this engine", call.call_id)
            return
        kind = self._served.get(call.method)
        try:
            if kind is None:
                known = ", ".join(self._served)
                self._tell_error(call, f"no utility {call.method!r}; there are: {known}")
            else:
                msgspec.convert(call.args, kind).in_core(core, partial(self._tell, call))
        except Exception as error:
            logger.exception("utility %s failed", call.method)
            self._tell_error(call, f"{type(error).__name__}: {error}")

    def _tell(self, call: UtilityBody, result: Any) -> None:
        """Answer a call, whose result may have come later."""
        response = UtilityResponseBody(call.call_id, None, result)
        try:
            self._sockets.send(client_of(call.call_id), response)
        except (TypeError, ValueError, OverflowError) as error:  # a result that has no encoding
            self._tell_error(call, f"{call.method} gave what cannot be sent: {error}")

    def _tell_error(self, call: UtilityBody, text: str) -> None:
        client = client_of(call.call_id)
        self._sockets.send(client, UtilityResponseBody(call.call_id, error=text))
