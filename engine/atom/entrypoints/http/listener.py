"""The server's listening socket, and a bound on connections whose readers never read.

No layer above the socket can drop such a connection: closing one first waits for the written bytes
to leave. The kernel can, and reports the client as gone. It would also buffer megabytes, thousands
of tokens, for a client that reads nothing, before the server noticed: unsent bytes are bounded.
"""

from __future__ import annotations

import errno
import socket

from atom.errors import ConfigError

BACKLOG = 2048
READER_TIMEOUT_SECONDS = 60.0
MOST_UNSENT_BYTES = 16 * 1024
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_EVERY_ADDRESS = "::"  # of IPv4 too


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the URL of the socket; an IPv6 address is in brackets."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(
    host: str, port: int, *, reader_timeout_seconds: float = READER_TIMEOUT_SECONDS
) -> socket.socket:
    """Bind a socket; its connections break when a client takes no written bytes for that long (0:
    as long as the system allows). Raises `ConfigError` if the address is unavailable."""
    return _listen(host, port, reader_timeout_seconds, shared=False)


def listen_shared(
    host: str, port: int, count: int, *, reader_timeout_seconds: float = READER_TIMEOUT_SECONDS
) -> list[socket.socket]:
    """Open `count` sockets on one address; the kernel spreads connections over them. Raises
    `ConfigError`, also if another program that would share the port has it."""
    with _listen(host, port, reader_timeout_seconds, shared=False) as alone:
        port = alone.getsockname()[1]
    return [_listen(host, port, reader_timeout_seconds, shared=True) for _ in range(count)]


def _listen(host: str, port: int, reader_timeout_seconds: float, *, shared: bool) -> socket.socket:
    try:
        listener = _bind(host, port, shared=shared)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error}); choose another with --host, --port"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
        milliseconds = int(reader_timeout_seconds * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux; accepted connections inherit it, too
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
    return listener


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=BACKLOG,
            reuse_port=shared,
            dualstack_ipv6=host == _EVERY_ADDRESS and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        if host != _EVERY_ADDRESS or error.errno not in _NO_IPV6:
            raise
    # The kernel has no IPv6: every address is one of IPv4.
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG, reuse_port=shared)
