"""The engine's own exceptions: each message states the problem, the place and the remedy.

The command line prints an `AtomError` as one line (exit code 1), and the server maps it to an
OpenAI-style error body. Any other exception is a fault of the engine and keeps its traceback.
"""

from __future__ import annotations


class AtomError(Exception):
    """Base of every error that a user or client can act upon."""


class ConfigError(AtomError):
    """An option has a value that cannot work, alone or together with others."""


class ModelError(AtomError):
    """The model folder is missing, incomplete, damaged, or of an unsupported kind."""


class AdapterError(AtomError):
    """A LoRA adapter is missing, damaged, of another model, or of a kind that is not served."""


class RequestError(AtomError):
    """A request cannot be served as asked; the server continues to run.

    `param` names the offending field of the request, `status` the HTTP status, `code` the word that
    OpenAI's clients check, if there is one; `retry_after_seconds` when to try again, if that is
    known.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    def reworded(self, message: str, param: str | None) -> RequestError:
        """Build the same refusal in other words, for an API with other names of its fields."""
        return RequestError(
            message,
            param=param,
            status=self.status,
            code=self.code,
            retry_after_seconds=self.retry_after_seconds,
        )


class EngineDeadError(AtomError):
    """The engine process is gone or never came up; the message carries its own last words."""
