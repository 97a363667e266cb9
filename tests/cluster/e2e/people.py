"""Somebody who is no administrator: a real identity, with the roles that a test binds to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.model.names import NAMESPACE
from nodeside.system import process
from tests.controlplane.api_server import Answer
from tests.controlplane.controlplane import ControlPlane
from tests.patience import patience

HOME = "people"  # the namespace of the accounts that play persons
_COMMAND = patience(60.0)  # seconds


@dataclass(frozen=True)
class Person:
    """Who has nothing but what is bound to him."""

    control_plane: ControlPlane
    name: str
    token: str

    def bind(self, role: str, *, namespace: str = "") -> None:
        """A ClusterRole everywhere, or a Role in a namespace."""
        if namespace:
            words = ["rolebinding", f"--role={role}", f"--namespace={namespace}"]
        else:
            words = ["clusterrolebinding", f"--clusterrole={role}"]
        kind, *rest = words
        account = f"--serviceaccount={HOME}:{self.name}"
        self.control_plane.kubectl("create", kind, f"{self.name}-{role}", *rest, account)

    def may(self, verb: str, what: str, namespace: str = "", name: str = "") -> bool:
        """`what` is a resource, with its group behind a dot."""
        resource, _, group = what.partition(".")
        asked = {"verb": verb, "resource": resource, "group": group}
        asked |= {"namespace": namespace, "name": name}
        spec = {"user": f"system:serviceaccount:{HOME}:{self.name}", "resourceAttributes": asked}
        spec["groups"] = ["system:authenticated", f"system:serviceaccounts:{HOME}"]
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(
            self.control_plane.do("POST", path, {**review, "spec": spec})["status"]["allowed"]
        )

    def until_allowed(self, verb: str, what: str, namespace: str = "", name: str = "") -> None:
        """A binding is heeded a moment after it was written."""
        self.control_plane.wait_for(
            lambda: self.may(verb, what, namespace, name), f"{verb} {what} to be allowed"
        )

    def ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Answer:
        return self.control_plane.request(method, path, document, token=self.token)

    def cli(self, *argv: str) -> process.Completed:
        """`nodeside-cluster …`"""
        config: Path = self.control_plane.kubeconfig_of(self.token)
        words = [sys.executable, "-m", "cluster", *argv, "--kubeconfig", str(config)]
        return process.run(words, timeout=_COMMAND, check=False, env={"COLUMNS": "400"})

    def leave(self) -> None:
        plane = self.control_plane
        plane.kubectl("delete", "serviceaccount", self.name, f"--namespace={HOME}")
        for kind in ("clusterrolebinding", "rolebinding"):
            found = plane.kubectl("get", kind, "-n", NAMESPACE, "-o", "name").output.split()
            for each in found:
                if each.partition("/")[2].startswith(f"{self.name}-"):
                    plane.kubectl("delete", each, "-n", NAMESPACE)


def come(control_plane: ControlPlane, name: str) -> Person:
    """Somebody new."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
    control_plane.request("POST", "/api/v1/namespaces", namespace)  # 409 if it is there
    control_plane.kubectl("create", "serviceaccount", name, f"--namespace={HOME}")
    return Person(control_plane, name, control_plane.pod_token(HOME, name, None))
