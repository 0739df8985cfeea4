"""ProfileReviewer: one AtomProfile under admission → a verdict, in time.

Refuses a profile that no AtomDeployment could use: a field that does not parse, a right that the
chart forbids. Its effects on the AtomDeployments that take it are a warning that names them,
because they depend on their specs. An update may keep a fault that the stored profile has. Called
by the reviewer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import LABEL_PROFILE
from atom_operator.domain import ATOM_DEPLOYMENT, FieldProblem, Manifest, ObjectKey, Owner
from atom_operator.reconcile.planning import SpecLayers, Surroundings, consider
from atom_operator.reconcile.profiles.fence import Namespace
from atom_operator.reconcile.profiles.profile import lay, name_profile
from atom_operator.settings import OperatorSettings
from atom_operator.validation.parsing import parse_profile, parse_spec
from atom_operator.webhook.admission_review import ReviewRequest, Verdict

_NAMED = 5  # AtomDeployments in a warning
_SAMPLE_KEY = ObjectKey("default", "sample")
_SAMPLE: dict[str, Any] = {
    "model": {"source": "hf://sample/of-no-profile"},
    "accelerator": {"type": "amd", "memory": "192Gi"},
    "engine": {"image": "registry.example.org/atom:sample"},
}


@dataclass(frozen=True, slots=True)
class _User:
    """An AtomDeployment, the name of its profile with what chose it, and its namespace."""

    deployment: Manifest
    named: tuple[str, str | None]
    namespace: Namespace

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace.name, self.deployment["metadata"]["name"])


class ProfileReviewer:
    """Judges by the operator's own planning; reads AtomDeployments, and writes nothing."""

    def __init__(
        self, port: ClusterPort, settings: OperatorSettings, *, answer_seconds: float
    ) -> None:
        self._port = port
        self._settings = settings
        self._answer_seconds = answer_seconds

    async def review(self, request: ReviewRequest) -> Verdict:
        """Review a profile. Never raises for errors of the cluster."""
        name, new = request.key.name, request.new.get("spec") or {}
        old = request.old.get("spec") or {} if request.old is not None else None
        stored = self._faults(name, old) if old is not None else ()
        fresh = [fault for fault in self._faults(name, new) if fault not in stored]
        if fresh:
            return Verdict(refusal="; ".join(fresh))
        until = time.monotonic() + self._answer_seconds
        try:
            async with asyncio.timeout(self._answer_seconds):
                found = await self._port.list_everywhere(ATOM_DEPLOYMENT) or ()
                looked_up = [await self._user(each) for each in found]
                users = [user for user in looked_up if user is not None and user.named[0] == name]
        except (ClusterError, TimeoutError):
            return Verdict(("the AtomDeployments that take it could not be looked at in time",))
        return Verdict(tuple(self._warnings(name, users, (new, old), until)))

    def _faults(self, name: str, profile: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the profile's faults that concern every AtomDeployment, by its own paths."""
        parsed = parse_profile(name, profile)
        if isinstance(parsed, tuple):
            return tuple(problem.message for problem in parsed)
        alone = {str(problem) for problem in self._problems(_SAMPLE, (name, None), None)}
        found = self._problems(_SAMPLE, (name, None), profile)
        return tuple(
            problem.message if problem.field == "spec.profile" else f"AtomProfile {name}: {problem}"
            for problem in found
            if str(problem) not in alone
        )

    async def _user(self, deployment: Manifest) -> _User | None:
        """Return the deployment with the profile that it takes; None for a spec that does not
        parse."""
        spec = parse_spec(deployment.get("spec") or {})
        if isinstance(spec, tuple):
            return None
        namespace = deployment["metadata"]["namespace"]
        labels = await self._port.get_namespace_labels(namespace)
        named = name_profile(spec, namespace, labels.get(LABEL_PROFILE))
        return _User(deployment, named, Namespace(namespace, labels))

    def _warnings(
        self,
        name: str,
        users: list[_User],
        profiles: tuple[Mapping[str, Any], Mapping[str, Any] | None],
        until: float,
    ) -> Iterator[str]:
        """Yield a warning about the AtomDeployments that the profile would have refused, as far as
        time permits."""
        new, old = profiles
        refused: list[str] = []
        looked = 0
        for user in users:
            if time.monotonic() > until:
                break
            looked += 1
            words = self._made_wrong(user, new, old)
            if words is not None:
                metadata = user.deployment["metadata"]
                refused.append(f"{metadata['namespace']}/{metadata['name']}: {words}")
        if refused:
            more = f" (and {len(refused) - _NAMED} more)" if len(refused) > _NAMED else ""
            yield (
                f"AtomProfile {name} would have {len(refused)} AtomDeployments refused, which go on"
                f" as they are until it is corrected: {'; '.join(refused[:_NAMED])}{more}"
            )
        if looked < len(users):
            yield f"{looked} of the {len(users)} AtomDeployments that take it were looked at"

    def _made_wrong(
        self, user: _User, new: Mapping[str, Any], old: Mapping[str, Any] | None
    ) -> str | None:
        """Return the first problem that a spec has by the new profile and not by the old one."""
        raw = user.deployment.get("spec") or {}
        found = self._problems(raw, user.named, new, user)
        if not found:
            return None
        before = {str(problem) for problem in self._problems(raw, user.named, old, user)}
        return next((str(each) for each in found if str(each) not in before), None)

    def _problems(
        self,
        raw: Mapping[str, Any],
        named: tuple[str, str | None],
        profile: Mapping[str, Any] | None,
        user: _User | None = None,
    ) -> tuple[FieldProblem, ...]:
        """Return every problem of a spec over the profile, or over none."""
        spec = parse_spec(raw)
        if isinstance(spec, tuple):
            return spec
        laid = lay(raw, spec, named, profile, namespace=user.namespace if user else None)
        if isinstance(laid, tuple):
            return laid
        images, site = self._settings.engine_images, self._settings.site
        around = Surroundings(images, site=site, layers=SpecLayers(laid.profile))
        return consider(Owner(user.key if user else _SAMPLE_KEY, ""), laid.spec, around).problems
