"""Options that several commands of `nodeside-cluster` share, and the decorators that add them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from cluster.kube.client import Api
    from cluster.model.snapshot import Settings

F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = click.option(
    "--namespace",
    "-n",
    default="nodeside",  # as in names.py, which is not imported for a fast start
    show_default=True,
    help="Namespace of nodeside.",
)
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class Connection:
    """The options `--kubeconfig`, `--context` and `--namespace`."""

    def __init__(self, kubeconfig: Path | None, context: str, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self.namespace = namespace

    def open(self, *, reach: bool = True) -> Api:
        """Return the API client. With `reach`, raises Unreachable at once if nothing answers."""
        from cluster.kube.client import connect

        api = connect(self._kubeconfig, self._context)
        if reach:
            api.check_reachable()
        return api

    def settings(self, **more: Any) -> Settings:
        from cluster.model.snapshot import Settings

        return Settings(namespace=self.namespace, **more)


def with_connection(function: F) -> F:
    """Add the options of a `Connection` to a command and pass it as `connection`."""

    @functools.wraps(function)
    def command(*, kubeconfig: Path | None, context: str, namespace: str, **rest: Any) -> Any:
        return function(connection=Connection(kubeconfig, context, namespace), **rest)

    wrapped: Any = command
    for option in (
        NAMESPACE,
        click.option("--context", default="", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path),
            default=None,
            help="As for kubectl. Default: $KUBECONFIG; else in a pod its service account, "
            "elsewhere ~/.kube/config.",
        ),
    ):
        wrapped = option(wrapped)
    return cast(F, wrapped)


_COMPLETED_WITHIN = 2.0  # seconds; a shell waits for it


def _complete_names(plural: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completion by the names of the objects in the cluster; nothing if none answers."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from cluster.kube import resources
        from cluster.kube.client import connect
        from nodeside.errors import NodesideError

        resource = {"drivers": resources.DRIVERS, "nodes": resources.NODES}[plural]
        options, names = context.params, list[str]()

        def look() -> None:
            with suppress(NodesideError):
                api = connect(options.get("kubeconfig"), options.get("context") or "")
                names.extend(api.list(resource, lambda each: str(each["metadata"]["name"])).items)

        looking = threading.Thread(target=look, daemon=True)  # a list may have many slow pages
        looking.start()
        looking.join(_COMPLETED_WITHIN)
        return sorted(name for name in names if name.startswith(incomplete))

    return complete


DRIVER = click.argument("driver", shell_complete=_complete_names("drivers"))
OPTIONAL_DRIVER = click.argument("driver", default="", shell_complete=_complete_names("drivers"))
NODE = click.argument("node", shell_complete=_complete_names("nodes"))
OPTIONAL_NODE = click.argument("node", default="", shell_complete=_complete_names("nodes"))


# `uname -m` of the architectures that Kubernetes supports.
ARCHITECTURES = ("x86_64", "aarch64", "ppc64le", "s390x")
ARCHITECTURE = click.option(
    "--architecture",
    type=click.Choice(ARCHITECTURES),
    default=ARCHITECTURES[0],
    show_default=True,
    help="As printed by `uname -m`.",
)


def not_empty(_: click.Context, __: click.Parameter, word: str) -> str:
    if not word.strip():
        raise click.BadParameter("it is empty")
    return word


def _parse_proxies(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Parse `NAME=VALUE` options into a mapping."""
    proxies = {}
    for word in words:
        name, _equals, value = word.partition("=")
        if name not in PROXY_NAMES or not value:
            expected = ", ".join(f"{each}=VALUE" for each in PROXY_NAMES)
            raise click.BadParameter(f"{word!r}: expected one of {expected}")
        proxies[name] = value
    return proxies


def _parse_labels(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Parse `KEY=VALUE` options into a mapping. manifests.py validates them as node labels."""
    pairs = [word.partition("=") for word in words]
    for word, (key, equals, _value) in zip(words, pairs, strict=True):
        if not (key and equals):
            raise click.BadParameter(f"{word!r}: expected KEY=VALUE")
    return {key: value for key, _equals, value in pairs}


# Settings for driver pods: `run` uses them, and `install` passes them to `run`.
CA_CONFIG_MAP = click.option(
    "--ca-config-map", default="", help="ConfigMap with ca-bundle.crt for driver pods."
)
PROXIES = click.option(
    "--proxy",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parse_proxies,
    help=f"For driver pods; NAME is {', '.join(PROXY_NAMES[:2])} or {PROXY_NAMES[2]}.",
)


PULL_SECRETS = click.option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    help="Secret in the namespace to pull images with.",
)
KUBELET_ROOT = click.option(
    "--kubelet-root",
    default="/var/lib/kubelet",
    show_default=True,
    help="The --root-dir of the kubelets, for the device agent.",
)
AGENT_IMAGE_HELP = "Pull spec of the device agent, which offers a Driver's devices."
# By the fields of InstallSettings.
_INSTALL_OPTIONS = {
    "image": click.option("--image", default="", help="Pull spec of the controller."),
    "agent_image": click.option(
        "--agent-image",
        default="",
        help=f"{AGENT_IMAGE_HELP} Default: nodeside-agent beside the controller's image.",
    ),
    "openshift": click.option(
        "--openshift", is_flag=True, help="Also create SecurityContextConstraints."
    ),
    "pull_secrets": PULL_SECRETS,
    "service_monitor": click.option(
        "--service-monitor",
        is_flag=True,
        help="Also create a ServiceMonitor for the Prometheus Operator.",
    ),
    "kubelet_root": KUBELET_ROOT,
    "ca_config_map": CA_CONFIG_MAP,
    "proxy": PROXIES,
    "node_selector": click.option(
        "--node-selector",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_parse_labels,
        help="Label of the nodes that the controller itself may run on.",
    ),
}


def with_install_options(function: F) -> F:
    """Add the installation options to a command and pass them as `chosen`, by field."""

    @functools.wraps(function)
    def command(**options: Any) -> Any:
        chosen = {name: options.pop(name) for name in _INSTALL_OPTIONS}
        return function(chosen=chosen, **options)

    wrapped: Any = command
    for option in reversed(_INSTALL_OPTIONS.values()):
        wrapped = option(wrapped)
    return cast(F, wrapped)


# The roles that commands need; names as in names.py, which is not imported for a fast start.
LOOKING = (
    "`status` needs the ClusterRole view, and so do `nodes` and `logs`; `explain`, `diff` and "
    "`resolve` also nodeside-explain"
)
ORDERING = (
    "`undo`, `pause`, `resume` and `retry` need the ClusterRole view and to patch drivers, "
    "`restart` to list and delete pods in the namespace; no role of the installation has that"
)
TRYING = "`preflight` needs the ClusterRole and the Role nodeside-preflight"
INSTALLING = "`install` and `uninstall` need cluster-admin"


def explain_missing_role(needs: str) -> Callable[[F], F]:
    """Return a decorator that adds the required role to the hint if the API server refuses."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*arguments: Any, **options: Any) -> Any:
            from cluster.kube.errors import Forbidden

            try:
                return function(*arguments, **options)
            except Forbidden as error:
                error.hint = f"{error.check_hint}; {needs}"
                raise

        return cast(F, command)

    return decorate
