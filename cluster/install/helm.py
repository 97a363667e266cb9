"""The Helm chart: the files of charts/nodeside, with the options as its default values.

The namespace is the release's. Object names are fixed, since a cluster has nodeside only once:
Helm refuses a second release because the first one owns the roles.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from cluster.install.manifests import InstallSettings, check_settings, missing_files_error
from cluster.install.pull_specs import split_pull_spec

_CHART: Final = Path(__file__).parent / "charts" / "nodeside"
_VALUES: Final = "values.yaml"


def chart_files(defaults: InstallSettings) -> dict[str, str]:
    """Return the files of the chart by their paths in its directory.

    Raises NotInstallable for a bad value, and if this copy of nodeside has no chart.
    """
    check_settings(defaults)
    paths = (path for path in sorted(_CHART.rglob("*")) if path.is_file())
    files = {str(path.relative_to(_CHART)): path.read_text(encoding="utf-8") for path in paths}
    if _VALUES not in files:
        raise missing_files_error(_CHART / _VALUES)
    for name, value in chart_values(defaults).items():
        files[_VALUES] = _replace_value(files[_VALUES], name, value)
    return files


def chart_values(installation: InstallSettings) -> dict[str, Any]:
    """Return an installation as values of the chart."""
    return {
        "image": {**split_pull_spec(installation.image), "pullPolicy": ""},
        "agentImage": split_pull_spec(installation.agent_image),
        "kubeletRoot": installation.kubelet_root,
        "imagePullSecrets": [{"name": name} for name in installation.pull_secrets],
        "openshift": installation.openshift,
        "caConfigMap": installation.ca_config_map,
        "proxy": dict(sorted(installation.proxy.items())),
        "replicaCount": installation.replicas,
        "nodeSelector": dict(installation.node_selector),
        "tolerations": [dict(each) for each in installation.tolerations],
        "resources": dict(installation.resources),
        "serviceMonitor": {
            "enabled": installation.service_monitor,
            "labels": {},
            "interval": "",
            "credentials": {"name": "", "key": "token"},
        },
        "extraArgs": list(installation.arguments),
    }


def _replace_value(text: str, name: str, value: Any) -> str:
    """Replace the value of a key at the top of values.yaml; its comment stays."""
    import yaml

    made = yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True)
    return re.sub(rf"^{name}:.*\n( .*\n)*", lambda _: made, text, flags=re.MULTILINE)
