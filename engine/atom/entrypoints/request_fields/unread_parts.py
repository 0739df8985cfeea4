"""Pictures and documents among what a tool gave back: words in their place.

A model that reads text alone cannot see them. A client cannot take a result out of its history
either, so a refusal would end the conversation; a picture that the user sends is refused by name.
"""

from __future__ import annotations

_KINDS = {
    "image": "image", "image_url": "image", "input_image": "image",
    "document": "document", "file": "file", "input_file": "file",
    "audio": "recording", "input_audio": "recording", "audio_url": "recording",
    "video_url": "video",
}  # fmt: skip
UNREAD_TYPES = tuple(_KINDS)


def words_for(part_type: object) -> str | None:
    """Return the words for a part of this type in a result; None for any other."""
    kind = _KINDS.get(part_type) if isinstance(part_type, str) else None
    return None if kind is None else f"[{kind} left out: this model reads text]"
