"""The API server's address and our credentials, as loaded by the `kubernetes` client.

Covers kubeconfigs, a pod's service account, token renewal, client certificates, exec plugins and
proxies. Only the configuration and the connection pool of that client are used: its typed models
are slow and take much memory. It is imported when the first connection is made, in a pod without
what a pod has no use for.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.kube.errors import ApiError
from nodeside.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from urllib3 import PoolManager

_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_KUBECONFIG = Path("~/.kube/config")
_IN_A_POD = "this pod's service account"

# A watch may be silent for minutes: without keepalive, a vanished peer would go unnoticed.
_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

CONNECTIONS = 32  # connection pool size: parallel writes and one watch for each kind


class Access:
    """Configuration, connection pool and headers; `renew` discards them after a 401."""

    def __init__(self, kubeconfig: Path | None = None, context: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._lock = threading.Lock()
        self._generation = 0
        self._configuration: Any = None
        self._pool: PoolManager | None = None

    @property
    def url(self) -> str:
        """The base URL of the API server."""
        with self._lock:
            return str(self._loaded_configuration().host).rstrip("/")

    def open_pool(self) -> tuple[PoolManager, dict[str, str], int]:
        """Return the pool, the authentication headers, and the generation to pass to `renew`."""
        with self._lock:
            configuration = self._loaded_configuration()
            if self._pool is None:
                self._pool = _connection_pool(configuration)
            with self._translate_errors():
                return self._pool, _authentication_headers(configuration), self._generation

    def renew(self, generation: int) -> None:
        """Reload everything at the next use, unless another thread did so since `generation`."""
        with self._lock:
            if generation != self._generation:
                return
            self._generation += 1
            self._configuration, self._pool = None, None

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.clear()
            self._configuration, self._pool = None, None

    def _loaded_configuration(self) -> Any:
        if self._configuration is None:
            with self._translate_errors():
                self._configuration = self._load_configuration()
        return self._configuration

    def _load_configuration(self) -> Any:
        file = self._kubeconfig_path(os.environ)
        if file is None:
            configuration, load = _import_for_a_pod()
            load(client_configuration=configuration)
        else:
            from kubernetes import client, config

            loading: Any = config
            configuration = client.Configuration()
            loading.load_kube_config(
                config_file=file,
                context=self._context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        configuration.connection_pool_maxsize = CONNECTIONS
        configuration.socket_options = _SOCKET_OPTIONS
        return configuration

    def _kubeconfig_path(self, environ: Mapping[str, str]) -> str | None:
        """Return the kubeconfig path as kubectl resolves it; None in a pod."""
        if self._kubeconfig is not None:
            return str(self._kubeconfig)
        if environ.get("KUBECONFIG"):
            return environ["KUBECONFIG"]
        if environ.get("KUBERNETES_SERVICE_HOST") and _TOKEN.exists():
            return None
        return str(_KUBECONFIG.expanduser())

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert every exception of the client's configuration to ApiError.

        The file and the exec plugin it may name are the user's. So the client raises not only its
        own exceptions, but also KeyError, TypeError and those of yaml, ssl and subprocess.
        """
        try:
            yield
        except ApiError:
            raise
        except Exception as exc:
            file = self._kubeconfig_path(os.environ)
            known = kubeconfig_error(file, self._context) if file is not None else None
            if known is not None:
                raise known from exc
            reason = str(exc).strip() or type(exc).__name__
            raise ApiError(
                f"cannot connect with {file or _IN_A_POD}: {reason}",
                hint="name a kubeconfig with --kubeconfig or KUBECONFIG, and try: kubectl version",
            ) from exc


def _import_for_a_pod() -> tuple[Any, Callable[..., None]]:
    """Return a new `Configuration` and `load_incluster_config` of the client.

    Its packages import all models, pydantic, requests and oauthlib in their `__init__`: 0.3 seconds
    of a processor and 16 MiB (37.0), of which a pod needs nothing. So the packages are entered
    without running these files. A version whose parts lie elsewhere is imported as a whole.
    """
    packages = ("kubernetes", "kubernetes.client", "kubernetes.config", "kubernetes.utils")
    if packages[0] not in sys.modules:
        try:
            for name in packages:
                spec = importlib.util.find_spec(name)
                sys.modules[name] = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
            configuration: Any = importlib.import_module("kubernetes.client.configuration")
            client: Any = sys.modules["kubernetes.client"]
            client.Configuration = configuration.Configuration
            loading: Any = importlib.import_module("kubernetes.config.incluster_config")
            importlib.import_module("kubernetes.client.rest")
            config_package: Any = sys.modules["kubernetes.config"]
            config_package.load_incluster_config = loading.load_incluster_config  # for `renew`
            return client.Configuration(), loading.load_incluster_config
        except (ImportError, AttributeError):
            for name in [name for name in sys.modules if name.partition(".")[0] == packages[0]]:
                del sys.modules[name]
    from kubernetes import client as whole
    from kubernetes import config

    return whole.Configuration(), config.load_incluster_config


def _connection_pool(configuration: Any) -> PoolManager:
    from kubernetes.client import rest

    rest_client: Any = rest.RESTClientObject
    pool: PoolManager = rest_client(configuration).pool_manager
    return pool


def _authentication_headers(configuration: Any) -> dict[str, str]:
    """Return the authentication headers, with the token reread if it may have expired."""
    settings = configuration.auth_settings().values()
    return {entry["key"]: entry["value"] for entry in settings if entry["value"]}


_NAME_ONE = "name one that can be used: --kubeconfig FILE, or KUBECONFIG in the environment"


_SHOWN = 10  # maximum number of contexts listed in a hint


class BadKubeconfig(ApiError):
    """A kubeconfig that is missing or invalid."""

    exit_code = ExitCode.USAGE
    reason = "BadKubeconfig"


def kubeconfig_error(files: str, context: str) -> BadKubeconfig | None:
    """Return a mistake the user can correct, else None. `files` has the format of KUBECONFIG."""
    paths = [Path(name) for name in files.split(os.pathsep) if name and os.path.lexists(name)]
    if not paths:
        return BadKubeconfig(f"there is no kubeconfig {files}", hint=_NAME_ONE)
    configs = [_read_kubeconfig(path) for path in paths]
    invalid = next((each for each in configs if isinstance(each, BadKubeconfig)), None)
    return invalid or _context_error(
        files, context, [each for each in configs if isinstance(each, dict)]
    )


def _read_kubeconfig(path: Path) -> dict[str, Any] | BadKubeconfig:
    import yaml

    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as exc:
        return BadKubeconfig(f"cannot read the kubeconfig {path}: {exc.strerror}", hint=_NAME_ONE)
    except UnicodeDecodeError as exc:
        return BadKubeconfig(
            f"the kubeconfig {path} is not UTF-8: {exc.reason} at byte {exc.start}",
            hint="save it as UTF-8 text",
        )
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(exc, "problem", None) or "it cannot be parsed"
        return BadKubeconfig(f"the kubeconfig {path}{line} is not YAML: {problem}", hint=_NAME_ONE)
    if isinstance(document, dict):
        return document
    content = "is empty" if document is None else "holds no mapping"
    return BadKubeconfig(f"the kubeconfig {path} {content}", hint=_NAME_ONE)


def _context_error(files: str, context: str, configs: list[dict[str, Any]]) -> BadKubeconfig | None:
    known = [each["name"] for each in _named_entries(configs, "contexts")]
    chosen = context or next((str(c) for each in configs if (c := each.get("current-context"))), "")
    hint = f"it has: {', '.join(known[:_SHOWN]) or 'none'}; choose one: --context NAME"
    if not chosen:
        return BadKubeconfig(f"the kubeconfig {files} names no current context", hint=hint)
    if chosen not in known:
        return BadKubeconfig(f"the kubeconfig {files} has no context {chosen!r}", hint=hint)
    cluster = next(
        _cluster_of(each) for each in _named_entries(configs, "contexts") if each["name"] == chosen
    )
    if cluster not in [each["name"] for each in _named_entries(configs, "clusters")]:
        return BadKubeconfig(
            f"the kubeconfig {files} has no cluster {cluster!r}: context {chosen!r} names it",
            hint="kubectl config view",
        )
    return None


def _cluster_of(entry: dict[str, Any]) -> str:
    context = entry.get("context")
    return str(context.get("cluster") or "") if isinstance(context, dict) else ""


def _named_entries(configs: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the named entries of this kind from all files."""
    lists = [each[kind] for each in configs if isinstance(each.get(kind), list)]
    entries = (entry for listed in lists for entry in listed if isinstance(entry, dict))
    return [entry for entry in entries if isinstance(entry.get("name"), str)]
