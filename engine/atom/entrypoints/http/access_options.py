"""AccessOptions: access control as flags, files and the environment configure it.

A value that travels to the server's processes; light to import.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from atom.entrypoints.http.api_key import (
    ADMIN_KEYS,
    SECRETS,
    FollowedKeys,
    KeyFile,
    read_api_keys,
    read_key_file,
)
from atom.errors import ConfigError

_LEAST_SECRET_CHARS = 16
# A changed Secret reaches all pods within about a minute and a half.
_KEPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Hold the access options beside the users' keys. admin_keys: of the command line or the
    environment; secrets: of replicas, from the same sources; shares_cache: whether prompts of one
    key may save another key's computation; lora_paths, weights_paths: folders, hub ids and buckets
    from which a request may have adapters and weights loaded, besides those of the start."""

    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_key_file: KeyFile | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    secret_file: KeyFile | None = field(default=None, repr=False)
    shares_cache: bool = False
    lora_paths: tuple[str, ...] = ()
    weights_paths: tuple[str, ...] = ()

    @property
    def takes_handovers(self) -> bool:
        """Return whether peers can prove that they are some."""
        return bool(self.secrets or self.secret_file)

    def followed_admins(self) -> FollowedKeys:
        return FollowedKeys(self.admin_keys, self.admin_key_file)

    def followed_secrets(self) -> FollowedKeys:
        return FollowedKeys(self.secrets, self.secret_file, kept_seconds=_KEPT_SECONDS)


def access_options(args: argparse.Namespace, environment: Mapping[str, str]) -> AccessOptions:
    """Combine the flags. Raises `ConfigError`."""
    options = AccessOptions(
        admin_keys=read_api_keys(
            args.admin_api_key, args.admin_api_key_file, environment, ADMIN_KEYS
        ),
        admin_key_file=read_key_file(args.admin_api_key_file, ADMIN_KEYS.file_flag),
        secrets=read_api_keys((), args.handover_secret_file, environment, SECRETS),
        secret_file=read_key_file(args.handover_secret_file, SECRETS.file_flag),
        shares_cache=args.share_prefix_cache,
        lora_paths=tuple(args.allowed_lora_paths),
        weights_paths=tuple(args.allowed_weights_paths),
    )
    found = () if options.secret_file is None else options.secret_file.found
    for secret in (*options.secrets, *(each.key for each in found)):
        if len(secret) < _LEAST_SECRET_CHARS:
            raise ConfigError(
                f"{SECRETS.file_flag}: a secret of {len(secret)} characters can be guessed; give "
                f"one of at least {_LEAST_SECRET_CHARS}, such as `openssl rand -hex 32` prints"
            )
    _check_handover(args, options)
    return options


def _check_handover(args: argparse.Namespace, options: AccessOptions) -> None:
    """Raise `ConfigError` if replicas are configured without the secret that they require."""
    flag = "--handover-url" if args.handover_url is not None else "--worker-urls"
    if (args.handover_url is None and not args.worker_urls) or options.takes_handovers:
        return
    raise ConfigError(
        f"{flag} needs the secret by which replicas know each other: give this server and those "
        f"the same {SECRETS.file_flag} FILE, or the variable {SECRETS.variable}"
    )
