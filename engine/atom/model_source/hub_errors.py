"""Convert the hub client's exceptions to a `ModelError` with the remedy."""

from __future__ import annotations

import os

from atom.errors import ModelError


def hub_error(model: str, revision: str, error: Exception) -> ModelError:
    """Explain an `error` that came from huggingface_hub while it dealt with `model` at
    `revision`."""
    # The client's own errors subclass each other: the order matters.
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError) or status == 403:
        return ModelError(
            f"{model}: access is restricted (HTTP {status}); accept its terms at "
            f"{endpoint}/{model} with the token's account, and check that the token may read it"
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelError(
            f"{model} has no revision {revision!r}; give a branch, tag or commit that exists"
        )
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        given = (
            "the given token may not see it" if os.environ.get("HF_TOKEN") else "no token is given"
        )
        return ModelError(
            f"{model} is not at {endpoint} or is private, and {given}; check the name, and set a "
            "token that may read it (HF_TOKEN; spec.model.tokenSecretRef)"
        )
    reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    return ModelError(
        f"{model}: {endpoint} could not be read ({type(error).__name__}: {reason}); check the "
        "network, HF_ENDPOINT and proxies. What was downloaded is kept, the next attempt resumes"
    )
