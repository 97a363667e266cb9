"""Reports missing packages of the extra `cluster`, with the command that installs them.

`pip install` without the extra `cluster` installs the command, but not the packages that it needs.
The command is derived from the metadata that pip recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeside.errors import SystemRefused

# The top-level modules of the extra in pyproject.toml and of its dependencies.
PACKAGES = (
    *("cryptography", "dateutil", "jinja2", "kubernetes", "prometheus_client", "re2", "urllib3"),
)


@contextmanager
def require_extra() -> Iterator[None]:
    """Turn a missing package of the extra into SystemRefused: it is not installed, so not a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in PACKAGES:
            raise
        raise SystemRefused(
            f"nodeside-cluster needs Python packages that are not installed, such as {name}",
            hint=f"install them: {_pip_command()}",
        ) from error


def _pip_command() -> str:
    """Return the pip command for the source that was installed here; it is not in any index."""
    import json
    import shlex
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        record = metadata.distribution("nodeside").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        record = None
    source = json.loads(record) if record else {}
    top = Path(__file__).parents[2]
    if (top / "pyproject.toml").is_file():
        words = ["--editable", f"{top}[cluster]"]
    elif url := str(source.get("url", "")):
        words = [f"{unquote(urlsplit(url).path) if url.startswith('file:') else url}[cluster]"]
    else:
        words = ["./nodeside-VERSION-py3-none-any.whl[cluster]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *words])
