"""TLS of the server's port: the files, checked before anything is loaded.

In front of many replicas a gateway terminates TLS; this is for a server without one.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from atom.errors import ConfigError

CLIENT_CERTIFICATES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Certificate files and options of a TLS listener. ca_certs: that clients' certificates must
    come from. cert_reqs: whether clients must have one (ssl.CERT_*)."""

    certfile: str
    keyfile: str | None = None
    keyfile_password: str | None = field(default=None, repr=False)
    ca_certs: str | None = None
    cert_reqs: int = int(ssl.CERT_NONE)
    ciphers: str = "TLSv1"

    @property
    def requires_certificates(self) -> bool:
        """Return whether every client must have a certificate."""
        return self.cert_reqs == ssl.CERT_REQUIRED

    def uvicorn_settings(self) -> dict[str, Any]:
        return {
            "ssl_certfile": self.certfile,
            "ssl_keyfile": self.keyfile,
            "ssl_keyfile_password": self.keyfile_password,
            "ssl_ca_certs": self.ca_certs,
            "ssl_cert_reqs": self.cert_reqs,
            "ssl_ciphers": self.ciphers,
        }

    def check(self) -> None:
        """Raises `ConfigError` where the files are missing, or do not belong together."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Else OpenSSL would ask on the terminal.
        password = self.keyfile_password or ""
        try:
            context.load_cert_chain(self.certfile, self.keyfile, lambda: password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--ssl-certfile {self.certfile}, --ssl-keyfile {self.keyfile}: cannot be used "
                f"({error}); give a certificate and its private key, as PEM files"
            ) from error
        if self.ca_certs is not None:
            try:
                context.load_verify_locations(self.ca_certs)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"--ssl-ca-certs {self.ca_certs}: cannot be used ({error}); give a PEM file"
                ) from error
        try:
            context.set_ciphers(self.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"--ssl-ciphers {self.ciphers}: {error}") from error
