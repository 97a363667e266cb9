"""`nodeside-cluster import`: a Module of Kernel Module Management becomes a Driver."""

from __future__ import annotations

import copy
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.kmm_module import convert_module
from cluster.render.templates import render_to_documents
from nodeside.errors import ExitCode, SpecError
from nodeside.spec.document import read_text
from tests import yaml_in_c as yaml
from tests.console import nodeside_cluster
from tests.tries import sampled

Place = tuple[Any, ...]

IMAGE = "registry.example.com/drivers/my-kmod:2.0"
EXPECTED = "expected one Module of kmm.sigs.x-k8s.io/v1beta1"
CONTAINER = "spec.moduleLoader.container"

# Every key of the type `Module` of kmm.sigs.x-k8s.io/v1beta1, but those of `dra`, which excludes
# `devicePlugin`. (v1beta2 has no Module.)
# https://github.com/kubernetes-sigs/kernel-module-management/blob/main/api/v1beta1/module_types.go
WHOLE = """\
apiVersion: kmm.sigs.x-k8s.io/v1beta1
kind: Module
metadata:
  name: my-kmod
  namespace: hardware
  labels: {team: lab}
  annotations: {example.com/ticket: "17"}
  uid: 7d3c0f5e-3a51-4f5e-a0a5-3d2b8f1f6a10
  managedFields: [{manager: kubectl, operation: Apply}]
spec:
  moduleLoader:
    serviceAccountName: loader
    container:
      version: "2.0"
      imagePullPolicy: Always
      containerImage: registry.example.com/org/every-kmod:${KERNEL_FULL_VERSION}
      registryTLS: {insecure: true, insecureSkipTLSVerify: true}
      build:
        buildArgs: [{name: LEVEL, value: "2"}]
        dockerfileConfigMap: {name: every-dockerfile}
        baseImageRegistryTLS: {insecure: true, insecureSkipTLSVerify: true}
        secrets: [{name: source-token}]
        kanikoParams: {tag: v1.9}
        selector: {build: "yes"}
      sign:
        unsignedImage: registry.example.com/org/every-kmod:unsigned
        unsignedImageRegistryTLS: {insecure: true, insecureSkipTLSVerify: true}
        certSecret: {name: every-cert}
        keySecret: {name: every-key}
        filesToSign: [/opt/lib/modules/every.ko]
      modprobe:
        moduleName: my-kmod
        dirName: /opt
        firmwarePath: /firmware
        parameters: [debug=1, fast]
        modulesLoadingOrder: [my-kmod, my_dep_a, my_dep_b]
        args: {load: ["--first-time"], unload: ["--wait=5000"]}
        rawArgs: {load: ["-v"], unload: ["-rv"]}
      inTreeModuleToRemove: fourth-intree
      inTreeModulesToRemove: [my-kmod, other-intree]
      kernelMappings:
        - literal: 6.0.15-300.fc37.x86_64
          containerImage: registry.example.com/org/my-kmod:6.0.15-300.fc37.x86_64
        - regexp: '^.+$'
          containerImage: registry.example.com/org/my-kmod:${KERNEL_FULL_VERSION}
          inTreeModuleToRemove: third-intree
          inTreeModulesToRemove: [fifth-intree]
          registryTLS: {insecure: true, insecureSkipTLSVerify: true}
          build:
            buildArgs: [{name: FLAVOUR, value: lab}]
            secrets: [{name: licence}]
            dockerfileConfigMap: {name: my-kmod-dockerfile}
            baseImageRegistryTLS: {insecure: true, insecureSkipTLSVerify: true}
            kanikoParams: {tag: v1.8}
            selector: {build: here}
          sign:
            unsignedImage: registry.example.com/org/my-kmod:unsigned
            unsignedImageRegistryTLS: {insecure: true, insecureSkipTLSVerify: true}
            certSecret: {name: cert-secret}
            keySecret: {name: key-secret}
            filesToSign:
              - /opt/lib/modules/${KERNEL_FULL_VERSION}/my-kmod.ko
  devicePlugin:
    container:
      image: registry.example.com/org/device-plugin:latest
      imagePullPolicy: IfNotPresent
      command: [/plugin]
      args: ["--format", "{{ .Name }}"]
      env: [{name: LEVEL, value: "3"}]
      resources: {limits: {memory: 64Mi}}
      volumeMounts: [{mountPath: /etc/plugin, name: settings}]
    initContainer: {image: registry.example.com/org/wait:1, command: [test, -e, /dev/my]}
    volumes: [{name: settings, configMap: {name: plugin-settings}}]
    serviceAccountName: sa-device-plugin
    automountServiceAccountToken: false
  imageRepoSecret: {name: pull-secret}
  imageRebuildTriggerGeneration: 4
  tolerations: [{key: a, operator: Exists}]
  selector: {node-role.kubernetes.io/worker: ""}
status:
  imageRebuildTriggerGeneration: 4
  moduleLoader: {nodesMatchingSelectorNumber: 3, desiredNumber: 3, availableNumber: 2}
"""
DRA = """\
container:
  image: registry.example.com/org/dra-driver:1
  env: [{name: LEVEL, value: "3"}]
  volumeMounts: [{mountPath: /etc/plugin, name: settings}]
initContainer: {image: registry.example.com/org/wait:1}
serviceAccountName: sa-dra
automountServiceAccountToken: true
volumes: [{name: settings, configMap: {name: plugin-settings}}]
driverName: dra.example.com
deviceClasses:
  - name: my-class
    selectors: [{cel: {expression: device.driver == 'dra.example.com'}}]
    config: [{opaque: {driver: dra.example.com, parameters: {mode: fast}}}]
"""


def with_dra() -> dict[str, Any]:
    """The same with a DRA driver in the place of the device plugin."""
    module: dict[str, Any] = yaml.safe_load(WHOLE)
    del module["spec"]["devicePlugin"]
    module["spec"]["dra"] = yaml.safe_load(DRA)
    return module


def converted(module: object) -> str:
    return convert_module(yaml.safe_dump(module), "module.yaml", IMAGE)


def parts(text: str) -> tuple[str, dict[str, Any]]:
    """The Driver as text, and the ConfigMap behind it."""
    driver, _, second = text.partition("---\n")
    return driver, yaml.safe_load(second or "{}")


def keys_of(value: object, path: Place = ()) -> Iterator[Place]:
    """The path of each key, at every depth."""
    below = value.items() if isinstance(value, dict) else ()
    for key, child in enumerate(value) if isinstance(value, list) else below:
        if isinstance(value, dict):
            yield (*path, key)
        yield from keys_of(child, (*path, key))


def at(module: Any, path: Place) -> Any:
    for key in path:
        module = module[key]
    return module


def spoken(path: Place) -> bool:
    """Whether the value there is repeated: what the API server and KMM wrote is not."""
    return path[0] not in ("apiVersion", "kind", "status") and path[1:2] != ("managedFields",)


@pytest.mark.slow
def test_no_key_of_a_module_gets_lost() -> None:
    """Without it, something else is printed: a field, an object, or a sentence about it."""
    plugin, dra = yaml.safe_load(WHOLE), with_dra()
    paths = [(plugin, path) for path in keys_of(plugin)]
    paths += [(dra, path) for path in keys_of(dra) if path[:2] == ("spec", "dra")]
    printed = {id(whole): converted(whole) for whole in (plugin, dra)}
    assert not any("not known to this program" in text for text in printed.values())
    for whole, path in paths:
        if spoken(path) or path in (("status",), ("metadata", "managedFields")):
            without = copy.deepcopy(whole)
            del at(without, path[:-1])[path[-1]]
            assert converted(without) != printed[id(whole)], path


def test_a_key_that_nobody_foresaw_is_named_wherever_it_is() -> None:
    """Pods and volumes are taken as they are, so there it is in the manifest."""
    whole = with_dra()
    mappings = {path[:-1] for path in keys_of(whole) if spoken(path)}
    more = copy.deepcopy(whole)
    for number, path in enumerate(mappings):
        at(more, path)[f"newer{number}ThanUs"] = "x7"
    printed = converted(more)
    lost = {path for number, path in enumerate(mappings) if f"newer{number}ThanUs" not in printed}
    assert not lost
    whole["spec"]["moduleLoader"]["container"]["kernelMappings"][1]["newerThanUs"] = ["x7"]
    assert (
        '# spec.moduleLoader.container.kernelMappings[1].newerThanUs (["x7"]): not known to this '
        "program; nothing of it is in the Driver below\n"
    ) in converted(whole)


@pytest.mark.slow
def test_a_value_of_another_kind_is_not_lost() -> None:
    kinds: Iterator[object] = itertools.cycle(["x7", {"x7": None}, ["x7"], [{"x7": "x7"}]])
    whole = with_dra()
    for path, value in zip(filter(spoken, keys_of(whole)), kinds, strict=False):
        other = copy.deepcopy(whole)
        at(other, path[:-1])[path[-1]] = value
        assert "x7" in converted(other), (path, value)


@pytest.mark.parametrize("group", ["kmm.sigs.x-k8s.io/v1beta1", "kmm.sigs.k8s.io/v1beta1"])
def test_the_group_of_the_api_is_taken_and_that_of_its_site(group: str) -> None:
    module = {**yaml.safe_load(WHOLE), "apiVersion": group}
    assert read_text(parts(converted(module))[0]).name == "my-kmod"


def test_a_whole_module_becomes_a_valid_driver() -> None:
    text, _ = parts(convert_module(WHOLE, "module.yaml", IMAGE))
    assert "to mend" not in text
    driver = read_text(text)
    spec = driver.spec
    assert (driver.name, spec.version, spec.image) == ("my-kmod", "2.0", IMAGE)
    assert [module.name for module in spec.modules] == ["my_dep_b", "my_dep_a", "my-kmod"]
    assert spec.modules[-1].parameters == {"debug": "1", "fast": "1"}
    assert spec.conflicts.modules == (
        *("other-intree", "fourth-intree", "fifth-intree"),
        "third-intree",
    )
    assert spec.firmware is not None
    assert spec.firmware.path == "/firmware"
    assert spec.hardware.node_selector == {"node-role.kubernetes.io/worker": ""}
    assert spec.signing is not None
    assert [stage.manifests for stage in spec.stages] == ["my-kmod-device-plugin"]


_COMMENTS = [
    (
        "spec.imageRepoSecret: copy pull-secret to nodeside's namespace, then "
        "nodeside-cluster install --pull-secret pull-secret"
    ),
    (
        'metadata.namespace ("hardware"): a Driver has none; its pods, and what they name, are '
        "in nodeside's namespace"
    ),
    "metadata.managedFields: written by the API server, nothing to do",
    "status: what KMM observed, nothing to do",
    (
        "spec.imageRebuildTriggerGeneration (4): nothing to do: a missing build is made again "
        "by itself; `nodeside-cluster rebuild NAME` builds anew, and so does a new `version`"
    ),
    (
        f'{CONTAINER}.modprobe.dirName ("/opt"): nothing to do: modules are found by their '
        "names, wherever the build puts them"
    ),
    (
        f'{CONTAINER}.modprobe.args ({{"load": ["--first-time"], "unload": ["--wait=5000"]}}): '
        "nodeside loads modules without modprobe, so it has no options: values for the module "
        "belong into modules[].parameters"
    ),
    (
        f"{CONTAINER}.kernelMappings[1].registryTLS "
        '({"insecure": true, "insecureSkipTLSVerify": true}): '
        "images are pulled by the nodes' container runtime, which has settings of its own"
    ),
    (
        f'{CONTAINER}.kernelMappings[1].build.selector ({{"build": "here"}}): no counterpart: '
        "nodes build for themselves, and a Job runs on any node of the architecture"
    ),
    (
        f"{CONTAINER}.kernelMappings[1].sign.filesToSign "
        '(["/opt/lib/modules/${KERNEL_FULL_VERSION}/my-kmod.ko"]): nothing to do: every module '
        "of `modules` is signed"
    ),
    "6.0.15-300.fc37.x86_64: built as every kernel is",
    (
        "every kernel: do here what the Dockerfile in ConfigMap every-dockerfile does between "
        "FROM and `make`"
    ),
    (
        "^.+$: do here what the Dockerfile in ConfigMap my-kmod-dockerfile does between FROM "
        "and `make`"
    ),
    "build argument FLAVOUR=lab: build.makeArguments or build.environment",
    "Secret licence at build time: no counterpart",
    "my-kmod: a loaded module of that name is replaced anyway",
    "not registry.example.com/org/my-kmod:${KERNEL_FULL_VERSION}: that has modules only",
    (
        "make one Secret my-kmod-signing in nodeside's namespace of the Secrets every-key "
        "(key) and every-cert (cert)"
    ),
    (
        "make one Secret my-kmod-signing in nodeside's namespace of the Secrets key-secret "
        "(key) and cert-secret (cert)"
    ),
]


@pytest.mark.parametrize("comment", sampled(_COMMENTS, 5))
def test_what_has_no_counterpart_is_a_comment(comment: str) -> None:
    assert f"# {comment}\n" in convert_module(WHOLE, "module.yaml", IMAGE)


def test_the_device_plugin_is_a_template_of_a_stage() -> None:
    _, config_map = parts(convert_module(WHOLE, "module.yaml", IMAGE))
    assert config_map["metadata"]["name"] == "my-kmod-device-plugin"
    [(_, daemonset)] = render_to_documents("my-kmod-device-plugin", config_map["data"], {})
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "registry.example.com/org/device-plugin:latest"
    assert [mount["name"] for mount in container["volumeMounts"]] == ["settings", "kubelet"]
    assert pod["serviceAccountName"] == "sa-device-plugin"
    assert pod["initContainers"][0]["command"] == ["test", "-e", "/dev/my"]
    assert container["args"] == ["--format", "{{ .Name }}"]  # no template of ours
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}]


def test_the_dra_driver_is_a_template_of_a_stage_and_its_classes_are_beside_it() -> None:
    driver, config_map, device_class = yaml.safe_load_all(converted(with_dra()))
    stage = {"name": "dra-driver", "manifests": "my-kmod-dra-driver"}
    assert driver["spec"]["stages"] == [stage]
    [(_, daemonset)] = render_to_documents("my-kmod-dra-driver", config_map["data"], {})
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert mounts[0] == "/etc/plugin"
    assert "/var/lib/kubelet/plugins_registry/" in mounts
    assert [each["name"] for each in container["env"]][-1] == "LEVEL"
    assert (pod["hostNetwork"], pod["serviceAccountName"]) == (True, "sa-dra")
    assert device_class["kind"] == "DeviceClass"
    assert device_class["metadata"] == {"name": "my-class"}
    assert device_class["spec"].keys() == {"selectors", "config"}


def test_modules_that_only_options_of_modprobe_name_are_asked_for() -> None:
    module = yaml.safe_load(WHOLE)
    module["spec"]["moduleLoader"]["container"]["modprobe"] = {"rawArgs": {"load": ["my-kmod"]}}
    text, _ = parts(converted(module))
    assert "# the Module names none: name them, in load order\n" in text
    assert '.modprobe.rawArgs ({"load": ["my-kmod"]}): nodeside loads modules without' in text


def test_parameters_go_to_the_module_that_they_are_for() -> None:
    module = yaml.safe_load(WHOLE)
    modprobe = module["spec"]["moduleLoader"]["container"]["modprobe"]
    modprobe |= {"moduleName": "my_kmod", "modulesLoadingOrder": ["my-kmod", "my_dep"]}
    spec = read_text(parts(converted(module))[0]).spec
    assert [each.name for each in spec.modules] == ["my_dep", "my-kmod"]
    assert spec.modules[-1].parameters == {"debug": "1", "fast": "1"}
    del modprobe["moduleName"]
    words = '.modprobe.parameters (["debug=1", "fast"]): the Module does not say'
    assert words in converted(module)


def test_a_parameter_that_is_given_twice_is_named() -> None:
    module = yaml.safe_load(WHOLE)
    modprobe = module["spec"]["moduleLoader"]["container"]["modprobe"]
    modprobe["parameters"] = ["port-map=1", "b", "port_map=2", "c=3", "port_map=4"]

    text = converted(module)

    assert read_text(parts(text)[0]).spec.modules[-1].parameters == {
        "port_map": "4",
        "b": "1",
        "c": "3",
    }
    for old, new in (("port-map=1", "port_map=2"), ("port_map=2", "port_map=4")):
        said = f"  # parameter {old} is given again as {new}, and has the last value\n"
        assert said in text


def test_a_version_that_none_may_have_is_named() -> None:
    module = yaml.safe_load(WHOLE)
    module["spec"]["moduleLoader"]["container"]["version"] = "two words"
    assert "# not two words: expected a version: letters," in converted(module)


def test_a_device_plugin_alone_says_what_is_missing() -> None:
    module = yaml.safe_load(WHOLE)
    del module["spec"]["moduleLoader"]
    text, config_map = parts(convert_module(yaml.safe_dump(module), "module.yaml", IMAGE))
    assert text.startswith("# to mend: ")
    assert "expected modules, devices or both" in text
    assert config_map["kind"] == "ConfigMap"


def test_texts_of_a_module_cannot_leave_their_comments() -> None:
    module = yaml.safe_load(WHOLE)
    module["spec"]["imageRepoSecret"]["name"] = "x\nspec: {privileged: true}"
    module["metadata"]["name"] = "Ünusual_Name!"
    text, _ = parts(convert_module(yaml.safe_dump(module), "module.yaml", IMAGE))
    assert yaml.safe_load(text)["spec"].get("privileged") is None
    assert yaml.safe_load(text)["metadata"]["name"] == "nusual-name"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod", f"{EXPECTED}, got Pod"),
        ("[]", f"{EXPECTED}, got a document without kind"),
        ("kind: Module\napiVersion: example.com/v1", f"{EXPECTED}, got apiVersion example.com/v1"),
        ("kind: Module", f"{EXPECTED}, got apiVersion nothing"),
        ("a: [", "module.yaml:1:5: not YAML"),
        ("", "module.yaml: is empty"),
        (f"{WHOLE}\nspec: {{}}", "appears twice, again in line"),
    ],
)
def test_what_is_no_module_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=re.escape(words)):
        convert_module(text, "module.yaml", IMAGE)


@pytest.mark.slow
def test_the_command_prints_it(tmp_path: Path) -> None:
    file = tmp_path / "module.yaml"
    file.write_text(WHOLE)

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "cluster", "import", str(path), "--image", IMAGE]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    assert run(file).stdout == convert_module(WHOLE, str(file), IMAGE)
    file.write_text("kind: Pod\n")
    refused = run(file)
    assert refused.returncode == ExitCode.SPEC
    assert f"{EXPECTED}, got Pod" in refused.stderr


@pytest.mark.parametrize(
    ("data", "error"),
    [(None, "cannot read {}: No such file or directory"), (b"\xff\xfeM\x00", "{} is not UTF-8")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, data: bytes | None, error: str
) -> None:
    path = tmp_path / "module.yaml"
    if data is not None:
        path.write_bytes(data)

    done = nodeside_cluster("import", str(path), "--image", IMAGE)

    assert done.code == 2
    assert f"error: {error.format(path)}\n" in done.errors
