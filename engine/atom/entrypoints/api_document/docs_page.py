"""/docs and /redoc: Swagger's page over the document, opened on a chat request that can be sent as
it is, and Redoc's.

Their scripts and styles are fastapi-offline's, from this process. Both viewers ask other servers
for more (Redoc for its logo, Swagger for a verdict on the document of a host that is not local); a
policy in the headers has browsers keep to this one.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse

STATIC_URL = "/static-offline-docs"
FIRST = "#/generation/chat_completions"  # swagger-ui's address of an operation: its tag and its id
_PARAMETERS = {
    "tryItOutEnabled": True,
    "persistAuthorization": True,
    "docExpansion": "list",
    "validatorUrl": None,
}
# The viewers write styles and scripts into their pages, and Redoc searches in a worker of a blob.
_HEADERS = {"content-security-policy": "default-src 'self' 'unsafe-inline' data: blob:"}
# Before swagger-ui reads the address; one that names an operation stays.
_OPEN_FIRST = f"<script>if (!location.hash) location.hash = {FIRST!r}</script>"


def add_docs_pages(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        page = get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title=f"{app.title} - Swagger UI",
            swagger_js_url=f"{root}{STATIC_URL}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{STATIC_URL}/swagger-ui.css",
            swagger_favicon_url=f"{root}{STATIC_URL}/favicon.png",
            swagger_ui_parameters=_PARAMETERS,
        )
        html = bytes(page.body).decode().replace("<head>", f"<head>\n{_OPEN_FIRST}", 1)
        return HTMLResponse(html, headers=_HEADERS)

    @app.get("/redoc", include_in_schema=False)
    async def redoc(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        page = get_redoc_html(
            openapi_url=f"{root}/openapi.json",
            title=f"{app.title} - ReDoc",
            redoc_js_url=f"{root}{STATIC_URL}/redoc.standalone.js",
            redoc_favicon_url=f"{root}{STATIC_URL}/favicon.png",
            with_google_fonts=False,
        )
        return HTMLResponse(bytes(page.body), headers=_HEADERS)
