"""The pods of the cluster that plans have to know, since Drivers evict them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class PodDemand:
    """Pods that request one of the resources, or have all labels of one selector.

    `resources` may also name drivers of dynamic resource allocation, which pods request by a
    ResourceClaim; their names have no slash. Empty `namespaces` means all namespaces.
    """

    resources: frozenset[str]
    selectors: frozenset[Labels]
    namespaces: frozenset[str]

    def __or__(self, other: PodDemand) -> PodDemand:
        is_everywhere = not self.namespaces or not other.namespaces
        return PodDemand(
            self.resources | other.resources,
            self.selectors | other.selectors,
            frozenset() if is_everywhere else self.namespaces | other.namespaces,
        )

    @property
    def by_claims(self) -> frozenset[str]:
        """Return the drivers of dynamic resource allocation among the resources."""
        return frozenset(name for name in self.resources if "/" not in name)

    def covers(self, other: PodDemand) -> bool:
        """Return whether this includes all pods of the other demand."""
        return self | other == self
