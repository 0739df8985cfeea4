"""Flags of the server's port: keys, TLS, the prefix behind a proxy, pages that may call it.

Argparse and values alone; entrypoints/http implements them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atom.entrypoints.console.mcp_hosts import DEFAULT_HOSTS, NONE, mcp_host
from atom.entrypoints.http.api_key import (
    ADMIN_KEY_VARIABLE,
    API_KEY_VARIABLE,
    SECRET_VARIABLE,
)
from atom.entrypoints.http.tls import CLIENT_CERTIFICATES, TlsFiles
from atom.entrypoints.process.logs import LEVELS
from atom.errors import ConfigError
from atom.images.media_rules import MediaRules

_DOMAIN = re.compile(r"([A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_PASSWORD_VARIABLE = "ATOM_SSL_KEYFILE_PASSWORD"


def add_access_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--api-key-file",
        type=Path,
        default=None,
        help="file with the key that clients must send, or with lines 'NAME: KEY', or a folder "
        "with a file for each key; followed as they change "
        f"(default: ${API_KEY_VARIABLE}, else none)",
    )
    add(
        "--api-key",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY",
        help="keys of which clients must send one; everybody on this machine sees them (ps), so "
        "rather use --api-key-file",
    )
    add(
        "--admin-api-key-file",
        type=Path,
        default=None,
        help="file or folder, as --api-key-file, with the keys of administrators: sleep, weights, "
        f"adapters, caches and profiles need one (default: ${ADMIN_KEY_VARIABLE}, else none)",
    )
    add(
        "--admin-api-key",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY",
        help="administrators' keys; everybody on this machine sees them (ps), so rather use "
        "--admin-api-key-file",
    )
    add(
        "--handover-secret-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="file or folder, as --api-key-file, with the secret that servers of --handover-url "
        "and --worker-urls share with servers at the URLs. The first is sent, and all count, so "
        f"that it can be changed (default: ${SECRET_VARIABLE}, else no answers are taken over)",
    )
    add(
        "--share-prefix-cache",
        action="store_true",
        help="share cached prefixes between the prompts of all keys (default: if there are several "
        "keys, each has a separate prefix cache)",
    )
    add(
        "--allowed-lora-paths",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="folders, hub ids (org/ for all of an organisation's) and buckets (s3://name/prefix) "
        "out of which POST /v1/load_lora_adapter may load (default: the adapters of the start)",
    )
    add(
        "--allowed-weights-paths",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="likewise for POST /update_weights (default: the model of the start)",
    )
    add(
        "--allowed-media-domains",
        type=media_domains,
        nargs="+",
        default=[],
        metavar="DOMAIN",
        help="sites whose images requests may name by URL, as words or a JSON list; a site with a "
        "private address is never called (default: none, images come as data URLs)",
    )
    add(
        "--allowed-local-media-path",
        type=media_folder,
        default=None,
        metavar="FOLDER",
        help="folder whose images requests may name by file:// URL, as all clients then can "
        "(default: none)",
    )
    add(
        "--allowed-origins",
        type=origins,
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="web pages that may ask this server from a browser (CORS), such as "
        "https://chat.example.com; * for all; as words, or a JSON list (default: none)",
    )
    add(
        "--root-path",
        type=_prefix,
        default="",
        metavar="/PREFIX",
        help="prefix under which a proxy in front shows this server (default: none)",
    )
    add(
        "--disable-console",
        action="store_true",
        help="omit the page at /, with a chat and the engine's figures (default: there is one)",
    )
    add(
        "--page-mcp-hosts",
        type=mcp_host,
        nargs="+",
        action="extend",
        default=[],
        metavar="ORIGIN",
        help="MCP servers that readers of this page may add to their chats, such as "
        "https://tools.example.com; loopback for those of the reader's own machine, * for all, "
        f"none for none (default: {' '.join(DEFAULT_HOSTS)})",
    )
    add(
        "--enable-tokenizer-info-endpoint",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="answer GET /tokenizer_info, with the chat template and the special tokens, for "
        "clients that make prompts themselves, such as lm-eval",
    )


def add_tls_flags(group: Any) -> None:
    add = group.add_argument
    add("--ssl-certfile", default=None, metavar="FILE", help="PEM certificate: the port is HTTPS")
    add("--ssl-keyfile", default=None, metavar="FILE", help="its private key, if not in that file")
    add(
        "--ssl-keyfile-password",
        default=os.environ.get(_PASSWORD_VARIABLE),
        metavar="TEXT",
        help=f"of the key; rather use ${_PASSWORD_VARIABLE}, which ps does not show",
    )
    add("--ssl-ca-certs", default=None, metavar="FILE", help="whose certificates clients may have")
    add(
        "--ssl-cert-reqs",
        type=_client_certificates,
        default=0,
        metavar="{none,optional,required}",
        help="whether clients need a certificate; also 0, 1, 2 (default: none)",
    )
    add("--ssl-ciphers", default="TLSv1", metavar="TEXT", help="OpenSSL's list of ciphers")


def tls_files(args: argparse.Namespace) -> TlsFiles | None:
    """Raises `ConfigError` for files that cannot be used."""
    if args.ssl_certfile is None:
        if args.ssl_keyfile or args.ssl_ca_certs or args.ssl_cert_reqs:
            raise ConfigError("TLS needs --ssl-certfile FILE, the server's own certificate")
        return None
    if args.ssl_cert_reqs and args.ssl_ca_certs is None:
        raise ConfigError("--ssl-cert-reqs needs --ssl-ca-certs FILE, to check certificates by")
    files = TlsFiles(
        certfile=args.ssl_certfile,
        keyfile=args.ssl_keyfile,
        keyfile_password=args.ssl_keyfile_password,
        ca_certs=args.ssl_ca_certs,
        cert_reqs=args.ssl_cert_reqs,
        ciphers=args.ssl_ciphers,
    )
    files.check()
    return files


def origins(text: str) -> list[str]:
    """Parse one origin, or vLLM's JSON list of origins."""
    found: Any = [text]
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"is no JSON list ({error}): {text!r}") from error
    return [_origin(each) for each in found]


def mcp_hosts(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the MCP servers that the page may call. Raises `ConfigError` for none and some."""
    given: tuple[str, ...] = tuple(args.page_mcp_hosts)
    if NONE in given and set(given) != {NONE}:
        raise ConfigError(
            f"--page-mcp-hosts {' '.join(given)}: {NONE} allows no server; leave it out, or the "
            f"others"
        )
    if given and args.disable_console:
        raise ConfigError(
            "--page-mcp-hosts is about the page that --disable-console removes; leave one of them "
            "out"
        )
    return given or DEFAULT_HOSTS


def media_domains(text: str) -> list[str]:
    """Parse one site, or vLLM's JSON list of sites."""
    found: Any = [text]
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"is no JSON list ({error}): {text!r}") from error
    return [_domain(each) for each in found]


def _domain(text: object) -> str:
    if not isinstance(text, str) or not _DOMAIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a site such as images.example.com, without https:// and port"
        )
    return text.lower()


def media_folder(text: str) -> Path:
    """Parse the folder of images."""
    folder = Path(text)
    if not folder.is_absolute() or not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder by its whole path, from / on")
    return folder


def media_rules(args: argparse.Namespace) -> MediaRules:
    """Return where images may come from besides data URLs."""
    domains = frozenset(each for given in args.allowed_media_domains for each in given)
    return MediaRules(domains, args.allowed_local_media_path)


def _origin(text: object) -> str:
    parts = urlsplit(text) if isinstance(text, str) else urlsplit("")
    if text != "*" and text != f"{parts.scheme}://{parts.netloc}":
        raise argparse.ArgumentTypeError(
            f"{text} is neither * nor an origin such as https://chat.example.com, without a path "
            f"or a slash at its end"
        )
    return str(text)


def _prefix(text: str) -> str:
    prefix = text.rstrip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise argparse.ArgumentTypeError(f"{text!r} is no prefix of paths such as /models/small")
    return prefix


def _client_certificates(text: str) -> int:
    named = CLIENT_CERTIFICATES.get(text)
    if named is not None:
        return int(named)
    if text not in ("0", "1", "2"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(CLIENT_CERTIFICATES)}")
    return int(text)


def add_log_level(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --log-level, which every command has."""
    parser.add_argument(
        "--log-level", choices=LEVELS, default=default, help="debug also shows tracebacks"
    )
