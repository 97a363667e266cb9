"""A real OCI registry: Debian's docker-registry, with or without passwords and TLS."""

from __future__ import annotations

import http.client
import os
import re
import select
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from nodeside.system import process
from tests.driver.fakes.webserver import Handler
from tests.patience import patience

USER, PASSWORD = "vendor", "open sesame"
_BCRYPT = "$2b$04$HVEDsI85shHAyucrmSow8evrvrp.5PugKASbSnzdGV6MtmjcAApJm"  # of PASSWORD
_LISTENING = re.compile(rb"listening on ([\d.]+:\d+)")
_START_TIMEOUT = patience(30.0)


@contextmanager
def registry(
    directory: Path,
    *,
    address: str = "127.0.0.1:0",
    password: bool = False,
    tls: tuple[str, str] | None = None,
) -> Iterator[str]:
    """Run a registry that keeps its data in `directory`/data; its host:port. Port 0: any."""
    program = needed("docker-registry", "docker-registry")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yml").write_text(_config(directory, address, password, tls))
    reading, writing = os.pipe()
    # Whoever is killed takes it along.
    serve: list[str | Path] = [program, "serve", directory / "config.yml"]
    child = process.start(["setpriv", "--pdeathsig", "KILL", *serve], stderr=writing)
    os.close(writing)
    drain: threading.Thread | None = None
    try:
        where = _where(child, reading)
        drain = threading.Thread(target=_drain, args=(reading,))
        drain.start()
        yield where
    finally:
        process.kill_group(child.pid)
        child.wait(10)
        if drain:
            drain.join()
        os.close(reading)


def needed(program: str, package: str) -> str:
    """The path of a program that these tests cannot do without."""
    found = shutil.which(program)
    if found is None:
        pytest.fail(f"{program} is not installed: apt-get install {package}", pytrace=False)
    return found


def certificates(directory: Path) -> tuple[Path, tuple[str, str]]:
    """A CA of our own, and a certificate and key for 127.0.0.1 signed by it (PEM files)."""
    directory.mkdir(parents=True, exist_ok=True)
    ca, ca_key = directory / "ca.pem", directory / "ca.key"
    own, key, asked = directory / "own.pem", directory / "own.key", directory / "own.csr"
    new: list[str | Path] = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ]
    process.run(
        [*new, "-x509", "-keyout", ca_key, "-out", ca, "-subj", "/CN=test CA", "-days", "2"],
        timeout=30,
    )
    process.run([*new, "-keyout", key, "-out", asked, "-subj", "/CN=registry"], timeout=30)
    (directory / "san").write_text("subjectAltName=IP:127.0.0.1")
    sign: list[str | Path] = [
        "openssl",
        "x509",
        "-req",
        "-in",
        asked,
        "-CA",
        ca,
        "-CAkey",
        ca_key,
        "-days",
        "2",
    ]
    process.run([*sign, "-CAcreateserial", "-extfile", directory / "san", "-out", own], timeout=30)
    return ca, (str(own), str(key))


def forward(handler: Handler, host: str) -> None:
    """Pass a request on to a registry, and its answer back."""
    length = int(handler.headers.get("Content-Length") or 0)
    body = handler.rfile.read(length) if length else None
    passed = ("content-type", "accept", "host", "range", "content-length")
    headers = {k: v for k, v in handler.headers.items() if k.lower() in passed}
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request(handler.command, handler.path, body, headers)
    response = connection.getresponse()
    data = response.read()
    kept = ("location", "content-type", "docker-content-digest")
    answer = {k: v for k, v in response.getheaders() if k.lower() in kept}
    if handler.command == "HEAD":
        answer["Content-Length"] = response.headers.get("Content-Length", "0")
    handler.reply(response.status, data, answer)
    connection.close()


def _config(directory: Path, address: str, password: bool, tls: tuple[str, str] | None) -> str:
    lines = [
        "version: 0.1",
        "log: {level: info}",
        "storage:",
        f"  filesystem: {{rootdirectory: {directory / 'data'}}}",
        "http:",
        f"  addr: {address}",
    ]
    if tls:
        lines += ["  tls:", f"    certificate: {tls[0]}", f"    key: {tls[1]}"]
    if password:
        (directory / "htpasswd").write_text(f"{USER}:{_BCRYPT}\n")
        lines += ["auth:", f"  htpasswd: {{realm: test, path: {directory / 'htpasswd'}}}"]
    return "\n".join(lines) + "\n"


def _where(child: Popen[bytes], reading: int) -> str:
    """The host:port that the registry says it listens on."""
    said = b""
    end = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < end:
        ready, _, _ = select.select([reading], [], [], 1)
        data = os.read(reading, 65536) if ready else b""
        said += data
        if match := _LISTENING.search(said):
            return match[1].decode()
        if (ready and not data) or child.poll() is not None:
            break
    pytest.fail(f"docker-registry did not start: {said.decode(errors='replace')}", pytrace=False)


def _drain(reading: int) -> None:
    """Read on what the registry says, so that it never waits for us."""
    while os.read(reading, 65536):
        pass
