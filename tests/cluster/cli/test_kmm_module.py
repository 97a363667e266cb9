"""`nodeside-cluster import`: a Module of Kernel Module Management becomes a Driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.cli.kmm_module import convert
from cluster.render.templates import documents
from nodeside.errors import ExitCode, SpecError
from nodeside.spec.document import read_text

IMAGE = "registry.example.com/drivers/my-kmod:2.0"

# Every field that the documentation of the other project names.
# https://kmm.sigs.k8s.io/documentation/deploy_kmod/
WHOLE = """\
apiVersion: kmm.sigs.k8s.io/v1beta1
kind: Module
metadata: {name: my-kmod, namespace: default}
spec:
  moduleLoader:
    container:
      version: "2.0"
      imagePullPolicy: Always
      modprobe:
        moduleName: my-kmod
        dirName: /opt
        firmwarePath: /firmware
        parameters: [debug=1, fast]
        modulesLoadingOrder: [my-kmod, my_dep_a, my_dep_b]
        rawArgs: {load: ["-v"]}
      inTreeModulesToRemove: [my-kmod, other-intree]
      kernelMappings:
        - literal: 6.0.15-300.fc37.x86_64
          containerImage: registry.example.com/org/my-kmod:6.0.15-300.fc37.x86_64
        - regexp: '^.+$'
          containerImage: registry.example.com/org/my-kmod:${KERNEL_FULL_VERSION}
          inTreeModuleToRemove: third-intree
          registryTLS: {insecure: false}
          build:
            buildArgs: [{name: FLAVOUR, value: lab}]
            secrets: [{name: licence}]
            dockerfileConfigMap: {name: my-kmod-dockerfile}
          sign:
            certSecret: {name: cert-secret}
            keySecret: {name: key-secret}
            filesToSign:
              - /opt/lib/modules/${KERNEL_FULL_VERSION}/my-kmod.ko
  devicePlugin:
    container:
      image: registry.example.com/org/device-plugin:latest
      env: [{name: LEVEL, value: "3"}]
      volumeMounts: [{mountPath: /etc/plugin, name: settings}]
    initContainer: {image: registry.example.com/org/wait:1, command: [test, -e, /dev/my]}
    volumes: [{name: settings, configMap: {name: plugin-settings}}]
    serviceAccountName: sa-device-plugin
    automountServiceAccountToken: false
  imageRepoSecret: {name: pull-secret}
  tolerations: [{key: a, operator: Exists}]
  selector: {node-role.kubernetes.io/worker: ""}
"""


def parts(text: str) -> tuple[str, dict[str, Any]]:
    """The Driver as text, and the ConfigMap behind it."""
    driver, _, second = text.partition("---\n")
    return driver, yaml.safe_load(second or "{}")


def test_a_whole_module_becomes_a_valid_driver() -> None:
    text, _ = parts(convert(WHOLE, "module.yaml", IMAGE))
    assert "to mend" not in text
    driver = read_text(text)
    spec = driver.spec
    assert (driver.name, spec.version, spec.image) == ("my-kmod", "2.0", IMAGE)
    assert [module.name for module in spec.modules] == ["my_dep_b", "my_dep_a", "my-kmod"]
    assert spec.modules[-1].parameters == {"debug": "1", "fast": "1"}
    assert spec.conflicts.modules == ("other-intree", "third-intree")
    assert spec.firmware is not None
    assert spec.firmware.path == "/firmware"
    assert spec.hardware.node_selector == {"node-role.kubernetes.io/worker": ""}
    assert spec.signing is not None
    assert [stage.manifests for stage in spec.stages] == ["my-kmod-device-plugin"]


@pytest.mark.parametrize(
    "comment",
    [
        "imageRepoSecret: nodeside-cluster install --pull-secret pull-secret",
        "tolerations: driver pods tolerate every taint",
        "modprobe.dirName: modules are found by their names, wherever the build puts them",
        "registryTLS: no counterpart; images are pulled by the nodes' container runtime",
        "6.0.15-300.fc37.x86_64: was built elsewhere; here by the node or by a Job",
        "^.+$: what the Dockerfile in ConfigMap my-kmod-dockerfile does between FROM and `make`",
        "build argument FLAVOUR: build.makeArguments",
        "Secret licence at build time: no counterpart",
        "my-kmod: a loaded module of that name is replaced anyway",
        "rawArgs load: ['-v']: no counterpart",
        "not registry.example.com/org/my-kmod:${KERNEL_FULL_VERSION}: that has modules only",
    ],
)
def test_what_has_no_counterpart_is_a_comment(comment: str) -> None:
    assert f"# {comment}\n" in convert(WHOLE, "module.yaml", IMAGE)


def test_the_device_plugin_is_a_template_of_a_stage() -> None:
    _, config_map = parts(convert(WHOLE, "module.yaml", IMAGE))
    assert config_map["metadata"]["name"] == "my-kmod-device-plugin"
    [(_, daemonset)] = documents("my-kmod-device-plugin", config_map["data"], {})
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "registry.example.com/org/device-plugin:latest"
    assert [mount["name"] for mount in container["volumeMounts"]] == ["settings", "kubelet"]
    assert pod["serviceAccountName"] == "sa-device-plugin"
    assert pod["initContainers"][0]["command"] == ["test", "-e", "/dev/my"]


def test_a_device_plugin_alone_says_what_is_missing() -> None:
    module = yaml.safe_load(WHOLE)
    del module["spec"]["moduleLoader"]
    text, config_map = parts(convert(yaml.safe_dump(module), "module.yaml", IMAGE))
    assert text.startswith("# to mend: ")
    assert "expected modules, devices or both" in text
    assert config_map["kind"] == "ConfigMap"


def test_texts_of_a_module_cannot_leave_their_comments() -> None:
    module = yaml.safe_load(WHOLE)
    module["spec"]["imageRepoSecret"]["name"] = "x\nspec: {privileged: true}"
    module["metadata"]["name"] = "Ünusual_Name!"
    text, _ = parts(convert(yaml.safe_dump(module), "module.yaml", IMAGE))
    assert yaml.safe_load(text)["spec"].get("privileged") is None
    assert yaml.safe_load(text)["metadata"]["name"] == "nusual-name"


@pytest.mark.parametrize(
    "text", ["kind: Pod", "[]", "kind: Module\napiVersion: example.com/v1", "a: [", ""]
)
def test_what_is_no_module_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        convert(text, "module.yaml", IMAGE)


def test_the_command_prints_it(tmp_path: Path) -> None:
    file = tmp_path / "module.yaml"
    file.write_text(WHOLE)

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "cluster", "import", str(path), "--image", IMAGE]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    assert run(file).stdout == convert(WHOLE, str(file), IMAGE)
    file.write_text("kind: Pod\n")
    refused = run(file)
    assert refused.returncode == ExitCode.SPEC
    assert "expected one Module of kmm.sigs.k8s.io/v1beta1, got Pod" in refused.stderr
