"""The rules over several fields, each broken once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nodeside.errors import SpecError
from nodeside.spec import parse
from nodeside.spec.rules import CLUSTER_RULES, RULES, Rule
from nodeside.spec.schema import shape_of
from tests.spec.documents import document

SYSFS = "bus/pci/drivers/edu/uevent"

BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"modules": [{"name": "dm-edu"}, {"name": "edu"}, {"name": "dm_edu"}]},
        "$.spec.modules: the names of the modules must differ (- and _ are the same): dm_edu",
    ),
    (
        {"modules": [{"name": "dm-edu"}], "conflicts": {"modules": ["dm_edu"]}},
        "$.spec: a module cannot be in conflicts.modules and in modules: dm_edu",
    ),
    (
        {"stages": [{"name": "a", "manifests": "x"}, {"name": "a", "manifests": "y"}]},
        "$.spec.stages: the names of the stages must differ",
    ),
    (
        {"stages": [{"name": "a", "manifests": "x", "waitFor": {"log": "a("}}]},
        (
            "$.spec.stages[0].waitFor.log: expected a regular expression of RE2, without "
            "look-around and backreferences: missing ), unterminated subpattern at position 1"
        ),
    ),
    (
        {"source": {"exclude": ["*.log", "!keep.log"]}},
        (
            "$.spec.source.exclude: ** and a leading ! mean nothing here: a name without / is "
            "looked for in every directory"
        ),
    ),
    (
        {"build": {"kind": "command"}},
        "$.spec.build: kind command and the field command need each other",
    ),
    (
        {"build": {"command": ["./build"]}},
        "$.spec.build: kind command and the field command need each other",
    ),
    (
        {"build": {"kind": "command", "command": ["./build"], "makeArguments": ["V=1"]}},
        "$.spec.build: makeArguments mean nothing with kind command; put them into the command",
    ),
    (
        {"prebuilt": {"sources": [{"oci": "registry.example.com/edu", "http": "http://x/y"}]}},
        "$.spec.prebuilt.sources[0]: expected exactly one of oci, http and directory",
    ),
    (
        {"prebuilt": {"sources": [{}]}},
        "$.spec.prebuilt.sources[0]: expected exactly one of oci, http and directory",
    ),
    (
        {"prebuilt": {"sources": [{"http": "https://x/y", "insecure": True}]}},
        "$.spec.prebuilt.sources[0]: insecure is for oci; write http:// for a plain HTTP directory",
    ),
    (
        {"prebuilt": {"sources": [{"http": "https://x/y", "publish": True}]}},
        "$.spec.prebuilt.sources[0]: publish is for oci: bundles are pushed to a registry",
    ),
    (
        {"prebuilt": {"sources": [{"oci": f"r.example.com/{n}", "publish": True} for n in "ab"]}},
        "$.spec.prebuilt.sources: at most one source has publish: true",
    ),
    (
        {"preflight": [{"osVersion": "9.4", "toolkit": "r.example.com/toolkit:9.4"}]},
        "$.spec.preflight[0]: expected exactly one of osVersion, kernel and toolkit",
    ),
    (
        {"rollout": {"evict": {"timeoutSeconds": 60}}},
        "$.spec.rollout.evict: expected resources or selector: who is to leave a node",
    ),
    (
        {"validate": {"sysfs": [{"path": SYSFS}]}},
        (
            "$.spec.validate.sysfs[0]: expected exactly one of value and matches (an empty "
            'attribute: matches: "^$")'
        ),
    ),
    (
        {"validate": {"sysfs": [{"path": SYSFS, "matches": "a("}]}},
        (
            "$.spec.validate.sysfs[0].matches: expected a Python regular expression: missing ), "
            "unterminated subpattern at position 1"
        ),
    ),
    (
        {"validate": {"sysfs": [{"path": SYSFS, "matches": "(?i)[a-\U0010ffff]"}]}},
        (
            "$.spec.validate.sysfs[0].matches: expected a Python regular expression: where (?i) is "
            "used, a range must end with an ASCII character"
        ),
    ),
    (
        {"stages": [{"name": "a", "manifests": "x", "waitFor": {"log": "(?si:[a-\\U0010ffff])"}}]},
        (
            "$.spec.stages[0].waitFor.log: expected a regular expression of RE2, without "
            "look-around and backreferences: where (?i) is used, a range must end with an ASCII "
            "character"
        ),
    ),
    (
        {"prebuilt": {"image": "registry.example.com/edu:latest"}},
        "$.spec.prebuilt.image: expected {kernel} in it: it is an image for one kernel",
    ),
    (
        {"toolkit": {"imageTemplate": "registry.example.com/toolkit:latest"}},
        "$.spec.toolkit.imageTemplate: expected one of {kernel}, {osVersion}, {arch} in it",
    ),
]


@pytest.mark.parametrize(("spec", "mistake"), BROKEN)
def test_a_broken_rule_is_explained(spec: dict[str, Any], mistake: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(document(**spec))
    assert str(caught.value) == f"driver.yaml: {mistake}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.message)
def test_every_rule_is_broken_by_a_test(rule: Rule[Any]) -> None:
    assert any(rule.message in mistake for _, mistake in BROKEN)


def test_a_rule_is_checked_though_other_fields_are_wrong() -> None:
    twice = [{"name": "edu"}, {"name": "edu"}]
    with pytest.raises(SpecError) as caught:
        parse(document(modules=twice, reuse="perhaps"))
    assert "the names of the modules must differ" in str(caught.value)
    assert "expected one of exact, crc" in str(caught.value)


@pytest.mark.parametrize("rule", [*RULES, *CLUSTER_RULES], ids=lambda rule: rule.message)
def test_cel_names_only_fields_that_exist(rule: Any) -> None:
    known = {field.json_name for field in shape_of(rule.section).fields}
    assert set(re.findall(r"self\.(\w+)", rule.cel)) <= known


@pytest.mark.parametrize(
    ("repository", "good"),
    [
        ("registry.example.com/team/edu", True),
        ("localhost:5000/edu", True),
        ("[::1]:5000/edu", True),
        ("registry.example.com/team/edu:1.0", False),
        ("registry.example.com/team/edu@sha256:00", False),
        ("https://registry.example.com/team/edu", False),
        ("registry.example.com", False),
        ("registry.example.com/Team", False),
    ],
)
def test_a_repository_has_no_scheme_tag_or_digest(repository: str, good: bool) -> None:
    value = document(prebuilt={"sources": [{"oci": repository}]})
    if good:
        assert parse(value).spec.prebuilt.sources[0].oci == repository
    else:
        with pytest.raises(SpecError, match="without scheme, tag and digest"):
            parse(value)


@pytest.mark.parametrize("expression", ["(?i)größe-x", "[a-\U0010ffff]", "(?i)[a-z]"])
def test_letters_of_any_language_may_be_looked_for(expression: str) -> None:
    value = document(validate={"sysfs": [{"path": SYSFS, "matches": expression}]})

    assert parse(value).spec.validate.sysfs[0].matches == expression


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://store.example.com", True),
        ("http://store.example.com:8080/a/@scope/b", True),
        ("https://[::1]:8443/", True),
        ("https://ci:geheim@store.example.com/x", False),
        ("https://ci@store.example.com", False),
        ("https:///x", False),
    ],
)
def test_the_url_of_a_directory_has_no_user_or_password(url: str, good: bool) -> None:
    value = document(prebuilt={"sources": [{"http": url}]})
    if good:
        assert parse(value).spec.prebuilt.sources[0].http == url
    else:
        with pytest.raises(SpecError, match="a user or password") as refused:
            parse(value)
        assert "@" not in str(refused.value).replace("//…@", "")


@pytest.mark.parametrize(
    ("path", "good"),
    [(good, True) for good in ("a", "a/b/", ".", "./a", "a/..b", ".hidden")]
    + [(bad, False) for bad in ("..", "a/..", "a/../b", "/a", "a\n")],
)
def test_a_path_of_the_source_stays_inside(path: str, good: bool) -> None:
    value = document(build={"directory": path})
    if good:
        assert parse(value).spec.build.directory == path
    else:
        with pytest.raises(SpecError, match=r"expected a relative path without \.\."):
            parse(value)
