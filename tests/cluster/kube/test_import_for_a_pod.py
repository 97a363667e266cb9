"""What a pod imports of the `kubernetes` client."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nodeside.system import process
from tests import TOP
from tests.patience import patience

pytestmark = pytest.mark.slow

_LONG = patience(120.0)  # seconds: a deadline that only a broken test meets
_CODE = """
import json, sys
from cluster.kube import credentials
if sys.argv[1] == "whole":
    import kubernetes
for _ in range(2 if sys.argv[1] == "again" else 1):
    configuration, load = credentials._import_for_a_pod()
parts = sys.modules["kubernetes.config.incluster_config"]
parts.SERVICE_TOKEN_FILENAME, parts.SERVICE_CERT_FILENAME = sys.argv[2:]
load(client_configuration=configuration)
pool = credentials._connection_pool(configuration)
headers = credentials._authentication_headers(configuration)
known = {"pydantic", "requests", "oauthlib", "kubernetes.client.models"} & sys.modules.keys()
print(json.dumps([configuration.host, pool.connection_pool_kw["ca_certs"], headers,
                  type(pool).__name__, sorted(known)]))
"""
_ADDRESS = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


def said(place: Path, how: str) -> Any:
    """What a fresh Python says of its connection, and which of the heavy modules it has."""
    (place / "token").write_text("secret")
    (place / "ca.crt").write_text("a certificate")
    argv = [sys.executable, "-c", _CODE, how, *(str(place / name) for name in ("token", "ca.crt"))]
    done = process.run(argv, timeout=_LONG, env=_ADDRESS, cwd=TOP)
    return json.loads(done.output)


def test_a_pod_imports_neither_models_nor_what_they_need(tmp_path: Path) -> None:
    host, certificate, headers, pool, heavy = said(tmp_path, "parts")
    assert host == "https://[fd00::1]:443"
    assert certificate == str(tmp_path / "ca.crt")
    assert headers == {"authorization": "bearer secret"}
    assert (pool, heavy) == ("PoolManager", [])


def test_credentials_that_are_read_again_after_a_refusal_are_the_same(tmp_path: Path) -> None:
    """Any 401, such as of an API server that is out of breath, makes the client read them again."""
    assert said(tmp_path, "again") == said(tmp_path, "parts")


def test_the_whole_client_says_the_same(tmp_path: Path) -> None:
    *parts, _ = said(tmp_path, "parts")
    *whole, heavy = said(tmp_path, "whole")
    assert parts == whole
    assert "kubernetes.client.models" in heavy


def test_a_client_whose_parts_lie_elsewhere_is_imported_as_a_whole(tmp_path: Path) -> None:
    client, config = tmp_path / "kubernetes/client", tmp_path / "kubernetes/config"
    client.mkdir(parents=True)
    config.mkdir()
    (tmp_path / "kubernetes/__init__.py").write_text("from kubernetes import client, config\n")
    (client / "__init__.py").write_text("class Configuration:\n    host = 'another'\n")
    (config / "__init__.py").write_text("def load_incluster_config(**given): print(given)\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from cluster.kube import credentials\n"
        "configuration, load = credentials._import_for_a_pod()\n"
        "print(configuration.host, load.__name__)\n"
    )
    done = process.run([sys.executable, "-c", code], timeout=_LONG, cwd=TOP)
    assert done.output == "another load_incluster_config\n"
