"""The error for a package that is not installed, with the extra that brings it.

The wheel's entry points exist whatever extras were installed, so each of them may meet a missing
package. Pure and free of other packages.
"""

from __future__ import annotations

_EXTRAS = {
    "triton": "cuda",
    "transformers": "conversion",
    "sentencepiece": "conversion",
    "tiktoken": "conversion",
    "opentelemetry": "otel",
    "obstore": "s3",
    "nixl_cu12": "nixl",
    "lm_eval": "evaluation",
}
_OWN = frozenset({"", "atom", "atom_operator", "atom_nvidia"})


def missing_package(error: ModuleNotFoundError, user: str) -> str | None:
    """Return the sentence for an import that failed; None if the module is one of ours, which is a
    fault. user: the program or the name that needs the package."""
    name = (error.name or "").partition(".")[0]
    if name in _OWN:
        return None
    extra = _EXTRAS.get(name, "engine")
    return (
        f"{user} needs the package {name}, which is not installed; "
        f"run: pip install atom-platform[{extra}]"
    )
