"""What a person is told about a driver.yaml that is wrong."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from nodeside import __version__, log
from nodeside.errors import ExitCode, SpecError
from nodeside.protocol.bundle_key import BuildKind
from nodeside.spec import Driver, dump, load, node_load, node_parse, parse, to_document
from nodeside.spec import document as spec_document
from nodeside.spec.document import read_text
from nodeside.spec.model import DriverSpec, Module, Reuse
from tests.spec.documents import document


def mistakes(value: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(value)
    return [line.removeprefix("driver.yaml: ") for line in str(caught.value).splitlines()]


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "driver.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_smallest_document_has_the_defaults() -> None:
    driver = parse(document())
    assert driver == Driver("edu", DriverSpec(version="1.0", modules=(Module("edu"),)))
    assert driver.spec.build.kind is None
    assert driver.spec.reuse is Reuse.EXACT


def test_a_document_of_the_api_server_is_read_without_its_metadata_and_status() -> None:
    value = document()
    value["metadata"] |= {"uid": "1", "labels": {"a": "b"}, "creationTimestamp": None}
    value["status"] = {"conditions": []}
    assert parse(value).name == "edu"


def test_all_mistakes_are_reported_at_once_with_lines_in_document_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
apiVersion: nodeside.io/v1alpha1
kind: Driver
metadata: {name: Edu}
spec:
  upgrade: sometimes
  version: 1.10
  modulez: []
  hardware:
    pci:
      - vendor: 8086
        device: 11e8
  validate:
    sysfs:
      - path: /sys/kernel
""",
    )
    with pytest.raises(SpecError) as caught:
        load(path)
    assert str(caught.value).replace(str(path), "driver.yaml").splitlines() == [
        (
            "driver.yaml:3: $.metadata.name: expected a DNS label: lower-case letters, digits and "
            '- inside, at most 40 characters, got "Edu"; write "edu"'
        ),
        "driver.yaml:4: $.spec.modules: is missing: the modules, in load order",
        'driver.yaml:5: $.spec.upgrade: expected one of live, onReboot, got "sometimes"',
        'driver.yaml:6: $.spec.version: expected a string, got 1.10; write "1.10"',
        "driver.yaml:7: $.spec.modulez: unknown field; did you mean modules?",
        'driver.yaml:10: $.spec.hardware.pci[0].vendor: expected a string, got 8086; write "8086"',
        'driver.yaml:11: $.spec.hardware.pci[0].device: expected a string, got 11e8; write "11e8"',
        (
            "driver.yaml:14: $.spec.validate.sysfs[0]: expected exactly one of value and matches "
            '(an empty attribute: matches: "^$")'
        ),
        (
            "driver.yaml:14: $.spec.validate.sysfs[0].path: expected a path relative to /sys, such "
            'as bus/pci/drivers/edu/*/factorial, without a leading / and .., got "/sys/kernel"'
        ),
    ]
    assert caught.value.exit_code is ExitCode.SPEC
    assert caught.value.hint == "every field is explained by: nodeside spec reference"


@pytest.mark.parametrize(
    ("spec", "mistake"),
    [
        (
            {"modules": [{"name": "edu", "parameters": {"debug": 3}}]},
            '$.spec.modules[0].parameters.debug: expected a string, got 3; write "3"',
        ),
        (
            {"modules": [{"name": "edu", "parameters": {"debug": True}}]},
            '$.spec.modules[0].parameters.debug: expected a string, got true; write "true"',
        ),
        (
            {"modules": [{"name": "edu", "parameters": {"names": 'a "b"'}}]},
            (
                "$.spec.modules[0].parameters.names: expected a value without double quotes and "
                'NUL, got "a \\"b\\""'
            ),
        ),
        (
            {"modules": [{"name": "edu", "parameters": {"a b": "1"}}]},
            (
                '$.spec.modules[0].parameters["a b"]: expected a parameter name: letters, digits, '
                "_ and -, at most 64 characters, as the key"
            ),
        ),
        (
            {"modules": ["edu"]},
            '$.spec.modules[0]: expected a mapping, got "edu"; write name: edu',
        ),
        ({"modules": []}, "$.spec: expected modules, devices or both"),
        (
            {"modules": {"name": "edu"}},
            "$.spec.modules: expected a list, got a mapping; begin each entry with -",
        ),
        (
            {"modules": [{"name": "edu.ko"}]},
            (
                "$.spec.modules[0].name: expected a module name: letters, digits, _ and -, without "
                '.ko, at most 55 characters, got "edu.ko"; write "edu"'
            ),
        ),
        (
            {"build": {"patches": "a.patch"}},
            '$.spec.build.patches: expected a list, got "a.patch"; write ["a.patch"]',
        ),
        (
            {"build": {"patches": ["../a.patch"]}},
            '$.spec.build.patches[0]: expected a relative path without .., got "../a.patch"',
        ),
        (
            {"build": {"kind": "kbiuld"}},
            (
                '$.spec.build.kind: expected one of kbuild, dkms, command, got "kbiuld"; '
                "did you mean kbuild?"
            ),
        ),
        (
            {"version": "\u201c1.0.0\u201d"},  # as a web page or a word processor quotes
            (
                "$.spec.version: expected a version: letters, digits and _.+~- after the first, "
                'at most 40 characters, got "\u201c1.0.0\u201d"; write "1.0.0"'
            ),
        ),
        (
            {"hardware": {"pci": [{"vendor": "0X12AB"}]}},
            (
                "$.spec.hardware.pci[0].vendor: expected four lower-case hex digits, "
                'got "0X12AB"; write "12ab"'
            ),
        ),
        (
            {"build": {"make_arguments": []}},
            "$.spec.build.make_arguments: unknown field; did you mean makeArguments?",
        ),
        (
            {"build": {"timeoutSeconds": "60"}},
            (
                '$.spec.build.timeoutSeconds: expected a whole number from 1 to 86400, got "60"; '
                "write 60 without quotes"
            ),
        ),
        (
            {"build": {"timeoutSeconds": 0}},
            "$.spec.build.timeoutSeconds: expected a whole number from 1 to 86400, got 0",
        ),
        (
            {"privileged": "true"},
            '$.spec.privileged: expected true or false, got "true"; write true without quotes',
        ),
        ({"unload": None}, "$.spec.unload: expected a mapping, got nothing"),
        (
            {"image": ""},
            (
                "$.spec.image: expected a pull spec such as registry.example.com/team/"
                'image:tag, got ""'
            ),
        ),
        (
            {"source": {"path": "a\x00b"}},
            '$.spec.source.path: expected some text, without control characters, got "a\\u0000b"',
        ),
        (
            {"source": {"path": "\ud800"}},
            '$.spec.source.path: expected some text, without control characters, got "\\ud800"',
        ),
        (
            {"rollout": {"maxFailed": "101%"}},
            (
                "$.spec.rollout.maxFailed: expected a number such as 3, or a percentage up to "
                '100%, got "101%"'
            ),
        ),
        (
            {"frobnicate": 1},
            (
                "$.spec.frobnicate: unknown field; known fields: version, modules, image, "
                "hardware, after, source, build, conflicts, firmware, prebuilt, reuse, hooks, "
                "services, userspace, validate, devices, "
                "upgrade, unload, signing, toolkit, preflight, rollout, stages, pods, "
                "privileged"
            ),
        ),
    ],
)
def test_a_wrong_field_is_explained(spec: dict[str, Any], mistake: str) -> None:
    assert mistakes(document(**spec)) == [mistake]


def test_a_document_of_another_kind_is_refused() -> None:
    value = document() | {"apiVersion": "v1", "kind": "Pod"}
    assert mistakes(value) == [
        '$.apiVersion: expected nodeside.io/v1alpha1, got "v1"',
        '$.kind: expected Driver, got "Pod"',
    ]


def test_an_empty_mapping_lacks_everything() -> None:
    assert mistakes({}) == [
        "$.apiVersion: is missing; write apiVersion: nodeside.io/v1alpha1",
        "$.kind: is missing; write kind: Driver",
        "$.spec: is missing",
        "$.metadata.name: is missing",
    ]


def test_a_number_of_nodes_may_be_written_as_a_number() -> None:
    driver = parse(document(rollout={"maxUnavailable": 3, "maxFailed": "20%"}))
    assert (driver.spec.rollout.max_unavailable, driver.spec.rollout.max_failed) == ("3", "20%")


def test_many_mistakes_are_counted_not_listed() -> None:
    found = mistakes(document(**{f"x{n}": n for n in range(70)}))
    assert len(found) == 51
    assert found[-1] == "and 20 more mistakes"


# --- files ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "driver.yaml: is empty"),
        ("# nothing\n", "driver.yaml: is empty"),
        (b"a: \xff\n", "driver.yaml: not UTF-8: invalid start byte at byte 3"),
        ("a: 1\n---\nb: 2\n", "driver.yaml:2: a second document begins here, expected one"),
        ("a: 1\n---\n---\nb: 2\n", "driver.yaml:3: a second document begins here, expected one"),
        (
            "spec:\n\tversion: a\n",
            (
                "driver.yaml:2:1: not YAML: found character '\\t' that cannot start any token "
                "while scanning for the next token"
            ),
        ),
        (
            "spec: [a\n",
            (
                "driver.yaml:2:1: not YAML: expected ',' or ']', but got '<stream end>' while "
                "parsing a flow sequence"
            ),
        ),
        ("a: \x07\n", "driver.yaml: the character U+0007 is not allowed in YAML"),
        (
            "a: &a [*a, *a]\n",
            (
                "driver.yaml: expected at most 20000 values, nested at most 32 deep, with all "
                "aliases followed"
            ),
        ),
        ("[\n" * 5000, "driver.yaml: nested too deeply"),
        (" " * 300_000, "driver.yaml: larger than 256 KiB: not a driver.yaml"),
    ],
)
def test_a_file_that_is_no_document_is_refused(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert str(caught.value).replace(str(path), "driver.yaml") == message


def test_a_document_of_another_version_says_which_nodeside_this_is() -> None:
    value = document() | {"apiVersion": "nodeside.io/v2"}
    assert mistakes(value) == [
        (
            '$.apiVersion: expected nodeside.io/v1alpha1, got "nodeside.io/v2"; '
            f"it was written for another version of nodeside; this is {__version__}"
        )
    ]


def test_a_document_may_be_followed_by_empty_ones() -> None:
    text = dump(parse(document()))
    assert read_text(f"{text}---\n# nothing\n---\n") == parse(document())


def test_a_field_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SpecError, match=r":2: \$\.kind: appears twice, again in line 3"):
        read_text("apiVersion: nodeside.io/v1alpha1\nkind: Driver\nkind: Driver\n")


@pytest.mark.parametrize("key", ["on", "1", "null", "1.5"])
def test_a_key_that_is_no_text_is_refused(key: str) -> None:
    with pytest.raises(
        SpecError, match=f'expected a string as the key in line 1, got {key}; write "'
    ):
        read_text(f"{key}: 1\n")


def test_aliases_are_followed() -> None:
    text = dump(parse(document(conflicts={"unbind": [{"vendor": "1234"}]})))
    text = text.replace("- vendor: '1234'", '&id\n        vendor: "1234"')
    text = text.replace("unbind:\n", "unbind:\n      - ", 1).replace("-       &id", "- &id")
    driver = read_text(text + "  hardware:\n    pci: [*id]\n")
    assert driver.spec.hardware.pci == driver.spec.conflicts.unbind


def test_a_missing_file_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read .*/none.yaml: No such file") as caught:
        load(tmp_path / "none.yaml")
    assert "nodeside init" in caught.value.hint


def test_a_directory_is_refused_with_the_name_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a directory") as caught:
        load(tmp_path)
    assert caught.value.hint == f"name the file: {tmp_path}/driver.yaml"


def test_a_device_is_refused() -> None:
    with pytest.raises(SpecError, match="/dev/zero: expected a regular file"):
        load(Path("/dev/zero"))


def test_a_file_may_begin_with_a_byte_order_mark_and_a_document_marker(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff---\n" + dump(parse(document())))
    assert load(path).name == "edu"


# --- newer documents on a node ---


def test_a_node_ignores_fields_newer_than_itself_and_says_so() -> None:
    said = io.StringIO()
    log.setup("driver", to=said)
    driver = node_parse(document(before=["mlx"], build={"cache": "yes"}))
    assert driver == parse(document())
    assert said.getvalue().splitlines() == [
        "driver warning: unknown field ignored: newer than this nodeside field=$.spec.before",
        "driver warning: unknown field ignored: newer than this nodeside field=$.spec.build.cache",
    ]


def test_a_node_refuses_a_condition_it_does_not_understand() -> None:
    """Without it, the variant would be for more kernels than the document says."""
    when = {"atLeast": "5.0", "distribution": "rhel"}
    with pytest.raises(SpecError, match=r"build\.variants\[0\]\.when\.distribution: unknown"):
        node_parse(document(build={"variants": [{"when": when, "directory": "rhel"}]}))


def test_a_node_refuses_a_value_it_does_not_understand(tmp_path: Path) -> None:
    path = written(tmp_path, dump(parse(document())) + "  upgrade: tomorrow\n")
    with pytest.raises(SpecError, match='expected one of live, onReboot, got "tomorrow"'):
        node_load(path)


# --- writing ---


def test_a_written_document_leaves_defaults_out() -> None:
    driver = Driver("vpoll", DriverSpec(version="0.1", modules=(Module("vpoll"),)))
    assert to_document(driver) == document(version="0.1", modules=[{"name": "vpoll"}]) | {
        "metadata": {"name": "vpoll"}
    }


def test_a_dumped_driver_quotes_what_yaml_takes_for_something_else() -> None:
    spec = {"hardware": {"pci": [{"vendor": "1234", "device": "11e8"}]}, "build": {"kind": "dkms"}}
    text = dump(parse(document(version="1.10", **spec)))
    assert text == (
        "apiVersion: nodeside.io/v1alpha1\n"
        "kind: Driver\n"
        "metadata:\n"
        "  name: edu\n"
        "spec:\n"
        "  version: '1.10'\n"
        "  modules:\n"
        "    - name: edu\n"
        "  hardware:\n"
        "    pci:\n"
        "      - vendor: '1234'\n"
        "        device: '11e8'\n"
        "  build:\n"
        "    kind: dkms\n"
    )
    assert read_text(text).spec.build.kind is BuildKind.DKMS


def test_a_file_is_parsed_again_only_if_its_text_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that runs reads it at every look."""
    text = dump(parse(document(version="1.0")))
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(text)
    second.write_text(text)
    loaded = load(first)
    parsed: list[str] = []
    parse_yaml = spec_document._parse_yaml

    def parse_and_note(text: str, where: str) -> Any:
        parsed.append(where)
        return parse_yaml(text, where)

    monkeypatch.setattr(spec_document, "_parse_yaml", parse_and_note)

    assert load(first) is load(second) is loaded
    assert parsed == []

    second.write_text(text.replace("1.0", "1.1"))
    assert load(second).spec.version == "1.1"
    assert load(first) is loaded
    assert parsed == [str(second)]


def test_a_wrong_file_is_told_each_time_by_its_own_name(tmp_path: Path) -> None:
    for name in ("first.yaml", "second.yaml", "second.yaml"):
        path = tmp_path / name
        path.write_text("kind: Driver\nwrong: 1\n")
        with pytest.raises(SpecError, match=name):
            load(path)


def test_few_of_the_files_that_were_read_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "driver.yaml"
    for number in range(2 * spec_document._LOADED_MOST):
        path.write_text(dump(parse(document(version=f"7.{number}"))))
        assert load(path).spec.version == f"7.{number}"

    assert len(spec_document._LOADED) == spec_document._LOADED_MOST
