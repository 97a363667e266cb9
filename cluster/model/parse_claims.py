"""Parses ResourceClaims from the API server's JSON, and joins them with the pods that use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cluster.model.json_fields import part, text
from cluster.model.parse_pods import pod_name
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import ClaimObject, Consumer


def claim_from(document: Mapping[str, Any], demand: PodDemand) -> ClaimObject | None:
    """Return the parts of a claim that match this demand; None if nothing matches.

    https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
    """
    status = part(document, "status")
    given = part(part(status, "allocation"), "devices").get("results") or ()
    drivers = demand.by_claims & {text(result, "driver") for result in given}
    users = status.get("reservedFor") or ()
    pods = frozenset(text(user, "uid") for user in users if user.get("resource") == "pods")
    return ClaimObject(pod_name(document), drivers, pods) if drivers and pods else None


def with_claims(
    consumers: Mapping[str, Consumer], claims: Mapping[str, ClaimObject]
) -> Mapping[str, Consumer]:
    """Return the consumers with what they request by claims.

    Those that neither request a resource nor match a selector are left out.
    """
    drivers: dict[str, frozenset[str]] = defaultdict(frozenset)
    for claim in claims.values():
        for uid in claim.pods:
            drivers[uid] |= claim.drivers
    joined = (
        replace(each, resources=each.resources | drivers[each.uid]) if each.uid in drivers else each
        for each in consumers.values()
    )
    return {each.name: each for each in joined if each.resources or each.labels}
