"""A real MCP server over Streamable HTTP, of the package `mcp`.

Run by the environment of clients, with its port, `json` or `sse` for the form of its answers, and
`shared` or `closed` for its CORS rules."""

from __future__ import annotations

import sys

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.middleware.cors import CORSMiddleware

port, answers, pages = int(sys.argv[1]), sys.argv[2], sys.argv[3]
server = MCPServer("Town")


@server.tool()
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"Rain in {city}"


@server.tool(name="town.sky")
def sky(city: str) -> str:
    """Always fail."""
    raise ToolError(f"the sky of {city} is closed")


app = server.streamable_http_app(json_response=answers == "json")
if pages == "shared":
    app = CORSMiddleware(
        app,
        allow_origins=["*"],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Mcp-Session-Id"],
    )
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
