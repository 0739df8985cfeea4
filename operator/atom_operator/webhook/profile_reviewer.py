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
from typing import Any

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import ATOM_DEPLOYMENT, FieldProblem, Manifest, ObjectKey, Owner
from atom_operator.reconcile.planning import Surroundings, consider
from atom_operator.reconcile.profile import lay, name_profile
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


class ProfileReviewer:
    """Judges by the operator's own planning; reads AtomDeployments, and writes nothing."""

    def __init__(
        self, port: ClusterPort, settings: OperatorSettings, *, answer_seconds: float
    ) -> None:
        self._port = port
        self._settings = settings
        self._answer_seconds = answer_seconds

    async def review(self, request: ReviewRequest) -> Verdict:
        """Never raises for what the cluster does."""
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
                users = [each for each in found if await self._takes(each, name)]
        except (ClusterError, TimeoutError):
            return Verdict(("the AtomDeployments that take it could not be looked at in time",))
        return Verdict(tuple(self._warnings(name, users, (new, old), until)))

    def _faults(self, name: str, profile: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the profile's faults that concern every AtomDeployment, by its own paths."""
        parsed = parse_profile(name, profile)
        if isinstance(parsed, tuple):
            return tuple(problem.message for problem in parsed)
        alone = {str(problem) for problem in self._problems(_SAMPLE, name, None)}
        fenced = {key: value for key, value in profile.items() if key != "namespaces"}
        found = self._problems(_SAMPLE, name, fenced)
        return tuple(
            problem.message if problem.field == "spec.profile" else f"AtomProfile {name}: {problem}"
            for problem in found
            if str(problem) not in alone
        )

    async def _takes(self, deployment: Manifest, name: str) -> bool:
        spec = parse_spec(deployment.get("spec") or {})
        if isinstance(spec, tuple):
            return False
        namespace = deployment["metadata"]["namespace"]
        label = await self._port.get_profile_name(namespace) if spec.profile is None else None
        return name_profile(spec, namespace, label)[0] == name

    def _warnings(
        self,
        name: str,
        users: list[Manifest],
        profiles: tuple[Mapping[str, Any], Mapping[str, Any] | None],
        until: float,
    ) -> Iterator[str]:
        """Yield a warning about the AtomDeployments that the profile would have refused, as far as
        time permits."""
        new, old = profiles
        refused: list[str] = []
        looked = 0
        for deployment in users:
            if time.monotonic() > until:
                break
            looked += 1
            words = self._made_wrong(deployment, name, new, old)
            if words is not None:
                metadata = deployment["metadata"]
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
        self,
        deployment: Manifest,
        name: str,
        new: Mapping[str, Any],
        old: Mapping[str, Any] | None,
    ) -> str | None:
        """Return the first problem that a spec has by the new profile and not by the old one."""
        raw = deployment.get("spec") or {}
        key = ObjectKey(deployment["metadata"]["namespace"], deployment["metadata"]["name"])
        found = self._problems(raw, name, new, key)
        if not found:
            return None
        before = {str(problem) for problem in self._problems(raw, name, old, key)}
        return next((str(each) for each in found if str(each) not in before), None)

    def _problems(
        self,
        raw: Mapping[str, Any],
        name: str,
        profile: Mapping[str, Any] | None,
        key: ObjectKey = _SAMPLE_KEY,
    ) -> tuple[FieldProblem, ...]:
        """Return every problem of a spec over the profile, or over none."""
        spec = parse_spec(raw)
        if isinstance(spec, tuple):
            return spec
        laid = lay(raw, spec, (name, None), profile, namespace=key.namespace)
        if isinstance(laid, tuple):
            return laid
        images, site = self._settings.engine_images, self._settings.site
        around = Surroundings(images, site=site, profile=laid.profile)
        return consider(Owner(key, ""), laid.spec, around).problems
