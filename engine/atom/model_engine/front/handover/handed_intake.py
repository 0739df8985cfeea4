"""HandedIntake: checks an answer that another replica has begun, and makes a request here of it."""

from __future__ import annotations

from collections.abc import Callable

from atom.errors import RequestError
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.input_processor import InputProcessor
from atom.model_engine.front.request_intake import RequestIntake
from atom.model_engine.front.served_loras import ServedLoras
from atom.model_engine.request import Request


class HandedIntake:
    def __init__(
        self,
        inputs: InputProcessor,
        intake: RequestIntake,
        loras: ServedLoras,
        weights_version: Callable[[], str],
    ) -> None:
        """weights_version: of the weights that answers are computed by now."""
        self._inputs = inputs
        self._intake = intake
        self._loras = loras
        self._weights_version = weights_version

    def request_of(self, handed: HandedRequest) -> Request:
        """Make the request, which arrives now. Raises `RequestError` for what cannot be computed
        here: 409 where the weights are others, 404 where its adapter is not served."""
        asked = handed.request
        self._inputs.check_handed(asked)
        begun_with = handed.weights_version
        if begun_with != self._weights_version() and not _may_begin(handed):
            raise RequestError(
                f"the answer was begun with weights {begun_with}, and these are "
                f"{self._weights_version()}",
                status=409,
            )
        lora = None if asked.lora is None else self._loras.get(asked.lora.lora_name)
        if lora is None and asked.lora is not None:
            raise RequestError(f"no adapter {asked.lora.lora_name!r} is served here", status=404)
        return self._intake.arrived(asked, None if lora is None else lora.request)


def _may_begin(handed: HandedRequest) -> bool:
    """Tell whether nothing of the answer has come, so that any weights may compute it."""
    return handed.weights_version == ANY_WEIGHTS and not handed.request.output_token_ids
