"""How a chat template wants its messages and tools: found out by probes at start, and applied to
each conversation. Called by chat_template; knows no Jinja."""

from atom.message_shape.arguments import read_arguments
from atom.message_shape.contents import Message
from atom.message_shape.finding import DroppedTextError, find_shape
from atom.message_shape.shape import MessageShape, ReasoningPlace, Shown, WriteCalls
from atom.message_shape.signs import RenderWith, TemplateSigns, read_signs
from atom.message_shape.tool_shape import Filled, ToolPlace

__all__ = [
    "DroppedTextError",
    "Filled",
    "Message",
    "MessageShape",
    "ReasoningPlace",
    "RenderWith",
    "Shown",
    "TemplateSigns",
    "ToolPlace",
    "WriteCalls",
    "find_shape",
    "read_arguments",
    "read_signs",
]
