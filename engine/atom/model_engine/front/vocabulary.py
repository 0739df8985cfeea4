"""Vocabulary: which token ids a model has, and which its tokenizer has beyond these.

An id past the embedding reads memory that is not the model's, so each id is checked before it is
queued: ids that clients write, and ids that the model's own tokenizer makes of their texts, which
happens too if a fine-tune has added tokens and unchanged weights. Ids that the model has and the
tokenizer does not (rows that pad the head) are no fault: they stand for no text. Used by
InputProcessor; knows no request.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping

from atom.config import ModelConfig
from atom.errors import RequestError
from atom.tokenizer import Tokenizer, tokenizer_place

_MOST_NAMED = 4


class Vocabulary:
    """Ids 0 to size - 1. Nothing changes after it is made."""

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self.size = model.vocab_size
        # Tokens that texts can become and the model has not, by id: hardly ever any.
        self._beyond = {} if tokenizer is None else tokenizer.tokens_from(model.facts.vocab_size)

    def check_encoded(self, token_ids: Iterable[int], param: str) -> None:
        """Check ids that the tokenizer made of a text. Raises `RequestError` with the token."""
        if not self._beyond:
            return
        for token_id in token_ids:
            if token_id in self._beyond:
                raise RequestError(
                    f"{reprlib.repr(self._beyond[token_id])} is a token of this model's tokenizer "
                    f"with id {token_id}, but {self._model.served_name} itself has ids 0 to "
                    f"{self.size - 1} only; leave it out of the text",
                    param=param,
                )

    def misfits(self, chat_template: str | None) -> list[str]:
        """Return the warnings for the log about texts that cannot be served because tokenizer and
        model do not match."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return []
        file = tokenizer_place(self._model.tokenizer_path)
        found = [
            f"{file}: added_tokens gives {token!r} the id {asked}, and texts get {given} for it, "
            "as in transformers; if the model was trained with another, its answers are wrong"
            for token, asked, given in tokenizer.misplaced
        ]
        if self._beyond:
            found.append(self._told_of_beyond(tokenizer, chat_template))
        return found

    def _told_of_beyond(self, tokenizer: Tokenizer, chat_template: str | None) -> str:
        beyond = self._beyond
        named = ", ".join(
            f"{reprlib.repr(text)} (id {index})"
            for index, text in list(beyond.items())[:_MOST_NAMED]
        )
        more = ", …" if len(beyond) > _MOST_NAMED else ""
        consequences = ["texts with them are refused"]
        special = set(tokenizer.encode("", add_special_tokens=True)) & beyond.keys()
        if special:
            consequences.append(
                "so is every text of /v1/completions, since one of them is put around it (send "
                "token ids)"
            )
        written = _written_by(chat_template or "", beyond.values(), tokenizer.special_tokens())
        if written:
            consequences.append(
                f"and probably every chat, since the chat template writes {written[0]!r}"
            )
        return (
            f"{tokenizer_place(self._model.tokenizer_path)} has tokens that the model has no "
            f"embedding for: {named}{more}, {len(beyond)} in all; config.json says vocab_size "
            f"{self.size}. "
            f"{', '.join(consequences).capitalize()}. Use the tokenizer that the weights were "
            "saved with, or resize the model's embeddings and save it again"
        )


def _written_by(
    chat_template: str, tokens: Iterable[str], special_tokens: Mapping[str, str]
) -> list[str]:
    """List the tokens that the template writes itself: spelled out, or by their role's name."""
    by_role = {text for role, text in special_tokens.items() if role in chat_template}
    return [token for token in tokens if token in by_role or token in chat_template]
