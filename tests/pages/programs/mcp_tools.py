"""A real MCP server over Streamable HTTP, of the package `mcp`.

Run by the environment of clients, with its port, `json` or `sse` for the form of its answers, and
`shared` or `closed` for its CORS rules, `signed` for a server that also asks for OAuth, whose one
token is `signed-in`, or `entered` for one that is its own authorisation server. That one registers
clients, asks its user at /consent, and forgets its access tokens at /expire, or all of them with
`?all=1`."""

from __future__ import annotations

import secrets
import sys
import time
from html import escape
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

port, answers, pages = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class OneToken:
    """Take one access token, as the verifier of a sign-in elsewhere does."""

    async def verify_token(self, token: str) -> AccessToken | None:
        is_ours = token == "signed-in"
        return AccessToken(token=token, client_id="a page", scopes=[]) if is_ours else None


class Entrance:
    """Keep clients, codes and tokens; the package's own routes check all that they are sent."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client: OAuthClientInformationFull) -> None:
        assert client.client_id is not None
        self.clients[client.client_id] = client

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        """Ask the user, whose answer goes back to the client."""
        code = AuthorizationCode(
            code=secrets.token_hex(16),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            **params.model_dump(exclude={"state", "scopes"}),
        )
        self.codes[code.code] = code
        back = str(params.redirect_uri)
        allow = construct_redirect_uri(back, code=code.code, state=params.state)
        deny = construct_redirect_uri(back, error="access_denied", state=params.state)
        return construct_redirect_uri(f"http://127.0.0.1:{port}/consent", allow=allow, deny=deny)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[code.code]
        return self._tokens(code.client_id, code.scopes, code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, token: str
    ) -> RefreshToken | None:
        return self.refresh.get(token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[token.token]
        return self._tokens(token.client_id, scopes, token.resource)

    def _tokens(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        shared: dict[str, Any] = {"client_id": client_id, "scopes": scopes, "resource": resource}
        access, refresh = secrets.token_hex(16), secrets.token_hex(16)
        self.access[access] = AccessToken(token=access, **shared)
        self.refresh[refresh] = RefreshToken(token=refresh, **shared)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError


entrance = Entrance()
here = f"http://127.0.0.1:{port}"
enters = {
    "auth_server_provider": entrance,
    "auth": AuthSettings(
        issuer_url=here,
        resource_server_url=f"{here}/mcp",
        client_registration_options=ClientRegistrationOptions(enabled=True),
        validate_token_resource=True,
    ),
}
signs = {
    "token_verifier": OneToken(),
    "auth": AuthSettings(
        issuer_url="https://sign-in.example.com",
        resource_server_url=f"http://127.0.0.1:{port}/mcp",
    ),
}
server = MCPServer("Town", **{"signed": signs, "entered": enters}.get(pages, {}))


@server.custom_route("/consent", methods=["GET"])
async def consent(request: Request) -> Response:
    links = (
        f'<a href="{escape(request.query_params[name])}">{name}</a>' for name in ("allow", "deny")
    )
    return HTMLResponse(f"<h1>Town</h1>{' '.join(links)}")


@server.custom_route("/expire", methods=["POST"])
async def expire(request: Request) -> Response:
    entrance.access.clear()
    if "all" in request.query_params:
        entrance.refresh.clear()
    return Response()


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
