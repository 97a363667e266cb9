"""The files of charts/ and deploy/ that are written from others.

    .venv/bin/python -m tests.manifests

The definitions come from the schema in the code. Templates of the chart in which nothing is set but
the namespace, the pull secrets and the labels of a release come from the files of deploy/, which
are written by hand, as all the rest is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cluster.install.crds import crd_documents
from cluster.install.manifests import to_yaml
from tests import TOP

CHART, DEPLOY = TOP / "charts" / "nodeside", TOP / "deploy"
NAMESPACE = "{{ .Release.Namespace | quote }}"
NAME = "    app.kubernetes.io/name: nodeside"
OURS = "    app.kubernetes.io/managed-by: nodeside"
LABELS = '    {{- include "nodeside.labels" . | nindent 4 }}'
PLAIN = ("accounts", "admission", "people")
NO_PULL_SECRETS = 'expression: "[]"\n'
PULL_SECRETS = 'expression: {{ include "nodeside.pullSecretNames" . | quote }}\n'


@cache
def texts() -> Mapping[Path, str]:
    """Each file with its text."""
    made = {}
    for crd in crd_documents():
        for directory in (CHART, DEPLOY):
            made[directory / "crds" / f"{crd['metadata']['name']}.yaml"] = to_yaml([crd])
    for name in PLAIN:
        made[CHART / "templates" / f"{name}.yaml"] = _template(f"base/{name}.yaml")
    constraints = _template("openshift/openshift.yaml")
    wrapped = f"{{{{- if .Values.openshift }}}}\n{constraints}{{{{- end }}}}\n"
    return made | {CHART / "templates" / "openshift.yaml": wrapped}


def _template(name: str) -> str:
    text = (DEPLOY / name).read_text()
    text = re.sub(f"^{OURS}$", f"{NAME}\n{OURS}\n{LABELS}", text, flags=re.MULTILINE)
    source = f"{{{{- /* Written from deploy/{name} by `python -m tests.manifests`. */}}}}\n"
    text = re.sub(r"^( +namespace:) nodeside$", rf"\1 {NAMESPACE}", text, flags=re.MULTILINE)
    return source + text.replace(NO_PULL_SECRETS, PULL_SECRETS)


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
