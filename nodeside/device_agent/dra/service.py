"""What the kubelet asks of a DRA driver: to prepare claims and unprepare them, and their health.

The agent's main thread says what is offered; threads of the server answer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from nodeside import log
from nodeside.device_agent import messages
from nodeside.device_agent.allocation import ContainerGrant, make_grant
from nodeside.device_agent.dra.claims import (
    UID,
    AllottedDevice,
    Claim,
    ClaimUnfit,
    Edits,
    cdi_device,
    cdi_kind,
    cdi_spec,
    read_claim,
)
from nodeside.device_agent.dra.names import device_name
from nodeside.device_agent.dra.prepared import PreparedClaims
from nodeside.device_agent.dra.site import Site
from nodeside.device_agent.dra.slices import MOST, Document
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.device_agent.rpc import Feed, Services, Unary
from nodeside.errors import NodesideError
from nodeside.http.status import KubernetesError, is_transient
from nodeside.protocol.labels import dra_driver
from nodeside.spec.devices import Device, Mount
from nodeside.values import frozen

# What a kubelet since 1.34, and since 1.36, looks for: kubelet/pkg/apis/dra/v1/types.go
VERSIONS: Final = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
_HEALTH_HOLDS = 120  # seconds after which the kubelet no longer knows: a feed comes every 30
_UNHEALTHY, _HEALTHY, _WHY = 2, 1, 128  # of v1alpha1.HealthStatus; characters of a reason
_MOST = 256  # claims of a request
_ENDS = "this agent is about to end"
_RETRY = 30.0  # seconds until CDI files that could not be written are tried again


@frozen
class _Device:
    """A device that can be allotted."""

    entry: Device
    offered: OfferedDevice


class ClaimService:
    """The claims of a Driver's devices on this node; nothing is served before `open`.

    `entries` are those of `spec.devices` with `expose: dra`. `get_claim` gets a claim from the API
    server, by namespace and name; it raises KubernetesError.
    """

    def __init__(
        self,
        driver: str,
        entries: Sequence[Device],
        site: Site,
        get_claim: Callable[[str, str], Document],
    ) -> None:
        self._driver = dra_driver(driver)
        self._kind = cdi_kind(driver)
        self._entries = {each.resource: each for each in entries}
        self._site = site
        self._get_claim = get_claim
        self._offered: dict[str, Mapping[str, OfferedDevice]] = {}  # by resource
        self._devices: Mapping[str, _Device] = {}  # by name
        self._prepared: PreparedClaims | None = None
        self._unwritten: Mapping[str, str] = {}  # why a CDI file is not as it should be, by uid
        self._retry_at = 0.0
        self._working = threading.Lock()
        self._preparing: dict[object, str] = {}  # the uids of claims that are being asked for
        self._preparations: Counter[str] = Counter()  # claims by resource, since the start
        self._health = Feed(self._health_response, messages.NodeWatchResourcesRequest)
        self._was_watched = False
        self.services: Services = {
            f"{messages.DRA_PACKAGE}.DRAPlugin": {
                "NodePrepareResources": Unary(
                    self._answer_prepare, messages.NodePrepareResourcesRequest
                ),
                "NodeUnprepareResources": Unary(
                    self._answer_unprepare, messages.NodeUnprepareResourcesRequest
                ),
            },
            VERSIONS[1]: {"NodeWatchResources": self._health},
        }

    # --- for the main thread

    def open(self) -> None:
        """Read which claims are prepared, if that was not done. Raises NodesideError."""
        if self._prepared is None:
            self._prepared = PreparedClaims(self._site.state, self._site.cdi, self._kind)
            self._write_anew(self._prepared)

    def check(self, now: float) -> None:
        """Write what could not be written before, from time to time."""
        if self._unwritten and self._prepared is not None and now >= self._retry_at:
            self._retry_at = now + _RETRY
            self._write_anew(self._prepared)

    def close(self) -> None:
        """Change no claim any more: from now on, another agent may."""
        with self._working:
            self._prepared = None

    def offer(self, resource: str, offered: Mapping[str, OfferedDevice]) -> None:
        """Replace the devices of a resource, and rewrite the CDI files of its prepared claims."""
        self._offered[resource] = offered
        self._devices = {
            device_name(name, each.id): _Device(self._entries[name], each)
            for name, some in self._offered.items()
            for each in some.values()
        }
        self._health.send_again()
        if self._prepared is not None:
            self._write_anew(self._prepared)

    def prepared_ids(self, resource: str) -> frozenset[str]:
        """Return the ids of the devices that prepared claims have."""
        claims = self._prepared.claims if self._prepared else {}
        taken = {each.device for claim in list(claims.values()) for each in claim.devices}
        offered = self._offered.get(resource, {})
        return frozenset(each for each in offered if device_name(resource, each) in taken)

    @property
    def is_watched(self) -> bool | None:
        """Whether a kubelet watches the health; None if none ever has: before 1.36 they do not."""
        return self._health.is_watched if self._was_watched else None

    def count_preparations(self, resource: str) -> int:
        """Return how many claims were given devices of a resource, since the start."""
        return self._preparations[resource]

    def _write_anew(self, prepared: PreparedClaims) -> None:
        """Write the CDI files of prepared claims anew, since device nodes may have other names now.

        Those with devices that are not there now stay as they are.
        """
        unwritten = {}
        with self._working:
            for uid, claim in list(prepared.claims.items()):
                try:
                    prepared.record_claim(
                        claim, cdi_spec(self._kind, claim, self._edits_by_request(claim))
                    )
                except ClaimUnfit:
                    continue
                except NodesideError as exc:
                    unwritten[uid] = str(exc)
                    if self._unwritten.get(uid) != str(exc):
                        log.warning("cannot write a CDI file", claim=claim.name, why=exc)
            self._unwritten = unwritten

    # --- for the server's threads

    def _answer_prepare(self, request: Any) -> Any:
        claims = {}
        for number, each in enumerate(request.claims):
            try:
                devices = self._prepare_claim(each, number)
                answer = messages.NodePrepareResourceResponse(devices=devices)
            except NodesideError as error:
                words = f"{error}; {error.hint}" if error.hint else str(error)
                log.warning("cannot prepare a claim", claim=_claim_in_words(each), why=error)
                answer = messages.NodePrepareResourceResponse(error=words)
            claims[each.uid] = answer
        return messages.NodePrepareResourcesResponse(claims=claims)

    def _prepare_claim(self, asked: Any, number: int) -> Sequence[Any]:
        """Prepare a claim, again if it is prepared; return its devices. Raises NodesideError."""
        prepared = self._require_valid(asked, number)
        mine = object()
        self._preparing[mine] = asked.uid
        try:
            claim = self._fetch_claim(asked, prepared.claims.get(asked.uid))
            with self._exclusive_change(prepared):
                if mine not in self._preparing:
                    raise ClaimUnfit("it was unprepared while the API server was asked for it")
                spec = cdi_spec(self._kind, claim, self._edits_by_request(claim))
                is_new = claim.uid not in prepared.claims
                prepared.record_claim(claim, spec)
                if is_new:
                    self._preparations.update(self._resources_of(claim))
        finally:
            self._preparing.pop(mine, None)
        if is_new:
            names = ",".join(each.device for each in claim.devices)
            log.fact("a claim is prepared", claim=_claim_in_words(asked), devices=names)
        given_names = {each["name"] for each in spec["devices"]} if spec else set()
        return _prepared_devices(claim, self._site.node, self._kind, given_names)

    def _require_valid(self, asked: Any, number: int) -> PreparedClaims:
        if not UID.fullmatch(asked.uid):
            raise ClaimUnfit(f"{asked.uid[:64]!r} is no uid")
        if number >= _MOST:
            raise ClaimUnfit(f"a request has at most {_MOST} claims")
        if self._prepared is None:
            raise ClaimUnfit(_ENDS)
        return self._prepared

    @contextmanager
    def _exclusive_change(self, prepared: PreparedClaims) -> Iterator[None]:
        """Hold the right to change prepared claims. Raises ClaimUnfit if another agent has it."""
        with self._working:
            if self._prepared is not prepared:
                raise ClaimUnfit(_ENDS)
            yield

    def _fetch_claim(self, asked: Any, known: Claim | None) -> Claim:
        """Return a claim from the API server; while that fails, the claim as it is known here."""
        try:
            document = self._get_claim(asked.namespace, asked.name)
        except KubernetesError as error:
            if known is not None and (error.status == 0 or is_transient(error.status)):
                return known
            raise
        return read_claim(
            document,
            uid=asked.uid,
            namespace=asked.namespace,
            name=asked.name,
            driver=self._driver,
            pool=self._site.node,
        )

    def _edits_by_request(self, claim: Claim) -> Mapping[str, Edits]:
        """Return what containers get, by request. Raises ClaimUnfit."""
        devices = self._devices
        edits = {}
        for request, names in claim.by_request.items():
            ids: dict[str, list[str]] = {}  # by resource
            for name in names:
                if name not in devices:
                    raise ClaimUnfit(f"this node has no device {name} of {self._driver} now")
                each = devices[name]
                ids.setdefault(each.entry.resource, []).append(each.offered.id)
            edits[request] = Edits(tuple(self._container_edits(*each) for each in ids.items()))
        return edits

    def _container_edits(
        self, resource: str, ids: Sequence[str]
    ) -> tuple[ContainerGrant, tuple[Mount, ...]]:
        give = self._entries[resource].give
        try:
            return make_grant(give, self._offered.get(resource, {}), ids), give.mounts
        except NodesideError as error:
            raise ClaimUnfit(str(error)) from error

    def _resources_of(self, claim: Claim) -> set[str]:
        devices = self._devices
        return {
            devices[each.device].entry.resource for each in claim.devices if each.device in devices
        }

    def _answer_unprepare(self, request: Any) -> Any:
        claims = {}
        for number, each in enumerate(request.claims):
            answer = messages.NodeUnprepareResourceResponse()
            try:
                prepared = self._require_valid(each, number)
                with self._exclusive_change(prepared):
                    for call in [c for c, uid in list(self._preparing.items()) if uid == each.uid]:
                        self._preparing.pop(call, None)
                    is_known = prepared.forget_claim(each.uid)
                if is_known:
                    log.fact("a claim is unprepared", claim=_claim_in_words(each))
            except NodesideError as error:
                log.warning("cannot unprepare a claim", claim=_claim_in_words(each), why=error)
                answer = messages.NodeUnprepareResourceResponse(error=str(error))
            claims[each.uid] = answer
        return messages.NodeUnprepareResourcesResponse(claims=claims)

    def _health_response(self) -> Any:
        """Return the health of all devices, which the kubelet puts into the status of pods."""
        self._was_watched, now = True, int(time.time())
        return messages.NodeWatchResourcesResponse(
            devices=[
                messages.DeviceHealth(
                    device=messages.DeviceIdentifier(pool_name=self._site.node, device_name=name),
                    health=_HEALTHY if each.offered.device.healthy else _UNHEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=_HEALTH_HOLDS,
                    message=each.offered.device.why[:_WHY],
                )
                for name, each in islice(self._devices.items(), MOST)
            ]
        )


def _prepared_devices(claim: Claim, pool: str, kind: str, given_names: set[str]) -> Sequence[Any]:
    """Return the devices of a claim. Those of a request share a CDI device: the first names it."""
    seen: set[str] = set()

    def cdi_ids(each: AllottedDevice) -> Sequence[str]:
        name = cdi_device(claim, each.request)
        is_first = each.request not in seen
        seen.add(each.request)
        return [f"{kind}={name}"] if is_first and name in given_names else []

    return [
        messages.DraDevice(
            request_names=[each.request],
            pool_name=pool,
            device_name=each.device,
            cdi_device_ids=cdi_ids(each),
        )
        for each in claim.devices
    ]


def _claim_in_words(asked: Any) -> str:
    return f"{asked.namespace[:64]}/{asked.name[:64]}"
