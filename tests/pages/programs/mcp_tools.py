"""A real MCP server over Streamable HTTP, of the package `mcp`.

Run by the environment of clients, with its port, `json` or `sse` for the form of its answers, and
`shared` or `closed` for its CORS rules, or `signed` for a server that also asks for OAuth, whose
one token is `signed-in`."""

from __future__ import annotations

import sys

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.middleware.cors import CORSMiddleware

port, answers, pages = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class OneToken:
    """Take one access token, as the verifier of a sign-in elsewhere does."""

    async def verify_token(self, token: str) -> AccessToken | None:
        is_ours = token == "signed-in"
        return AccessToken(token=token, client_id="a page", scopes=[]) if is_ours else None


signs = {
    "token_verifier": OneToken(),
    "auth": AuthSettings(
        issuer_url="https://sign-in.example.com",
        resource_server_url=f"http://127.0.0.1:{port}/mcp",
    ),
}
server = MCPServer("Town", **(signs if pages == "signed" else {}))


@server.tool()
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"Rain in {city}"


@server.tool(name="town.sky")
def sky(city: str) -> str:
    """Always fail."""
    raise ToolError(f"the sky of {city} is closed")


app = server.streamable_http_app(json_response=answers == "json")
if pages != "closed":
    app = CORSMiddleware(
        app,
        allow_origins=["*"],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Mcp-Session-Id"],
    )
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
