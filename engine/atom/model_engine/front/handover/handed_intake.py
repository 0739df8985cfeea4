"""HandedIntake: checks an answer that another replica has begun, and makes a request here of it."""

from __future__ import annotations

from collections.abc import Callable

from atom.errors import RequestError
from atom.images.image_memory import ImageMemory
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.input_processor import InputProcessor
from atom.model_engine.front.loras.served_loras import ServedLoras
from atom.model_engine.front.request_intake import RequestIntake
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.request_image import pixel_bytes

_MOST_NAME_CHARS = 256


class HandedIntake:
    def __init__(
        self,
        inputs: InputProcessor,
        intake: RequestIntake,
        loras: ServedLoras,
        weights_version: Callable[[LoRARequest | None], str],
        image_memory: ImageMemory | None = None,
    ) -> None:
        """weights_version: of the weights that answers of an adapter, or of the model alone, are
        computed by now. image_memory: in which the request's images must find room."""
        self._inputs = inputs
        self._intake = intake
        self._loras = loras
        self._weights_version = weights_version
        self._image_memory = image_memory

    def request_of(self, handed: HandedRequest) -> Request:
        """Make the request, which arrives now. Raises `RequestError` if it cannot be computed here:
        409 if the weights differ, 404 if its adapter is not served."""
        asked = handed.request
        if len(handed.name) > _MOST_NAME_CHARS:
            raise RequestError(f"name: at most {_MOST_NAME_CHARS} characters", param="name")
        self._inputs.check_handed(asked)
        lora = None if asked.lora is None else self._loras.get(asked.lora.lora_name)
        if lora is None and asked.lora is not None:
            raise RequestError(f"no adapter {asked.lora.lora_name!r} is served here", status=404)
        begun_with = handed.weights_version
        own = self._weights_version(None if lora is None else lora.request)
        if begun_with != own and not _may_begin(handed):
            raise RequestError(
                f"the answer was begun with weights {begun_with}, and these are {own}", status=409
            )
        return self._intake.arrived(asked, None if lora is None else lora.request)

    def check_room(self, request: Request) -> None:
        """Raise `RequestError` (503) if there is no room for the request's images now."""
        if self._image_memory is not None:
            self._image_memory.check_room(pixel_bytes(request.images))


def _may_begin(handed: HandedRequest) -> bool:
    """Return whether the answer is still empty, so that any weights may compute it."""
    return handed.weights_version == ANY_WEIGHTS and not handed.request.output_token_ids
