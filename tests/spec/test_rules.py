"""The rules over several fields, each broken once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nodeside.errors import SpecError
from nodeside.spec import parse
from nodeside.spec.rules import CLUSTER_RULES, RULES, Rule
from nodeside.spec.schema import shape_of
from tests.spec.broken import BROKEN, SYSFS, WRONG_IMAGES
from tests.spec.documents import document


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


@pytest.mark.parametrize(("spec", "remedy"), WRONG_IMAGES)
def test_an_image_that_nobody_could_pull_is_refused_with_the_remedy(
    spec: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse(document(**spec))
    [line] = str(caught.value).splitlines()
    assert re.search(r": expected (a pull spec such as|an OCI repository) .*, got \"", line)
    assert line.rpartition("; ")[2] == remedy if remedy else line.endswith(('"', "..."))


@pytest.mark.parametrize(
    "image",
    [
        "edu",
        "edu:1.0.0",
        "localhost:5000/edu:RC1",
        "Registry.Example.com/team/edu_x/a--b__c.d:V1.0_final",
        "[fe80::1]:5000/edu",
        f"registry.example.com/edu@sha256:{'0' * 64}",
        f"registry.example.com:443/edu:1.0@sha512:{'a' * 128}",
        f"{'a' * 255}:{'T' * 128}",
    ],
)
def test_whatever_a_container_runtime_pulls_is_an_image(image: str) -> None:
    assert parse(document(image=image)).spec.image == image


@pytest.mark.parametrize(
    ("section", "field", "image"),
    [
        ("toolkit", "imageTemplate", "registry.example.com/{arch}/toolkit:{osVersion}"),
        ("toolkit", "imageTemplate", "{arch}.example.com:5000/a-{arch}:x-{kernel}.{arch}"),
        ("prebuilt", "image", "registry.example.com/edu:{version}-{kernel}-{osVersion}-{arch}"),
    ],
)
def test_placeholders_may_stand_for_letters_anywhere(section: str, field: str, image: str) -> None:
    assert image in str(parse(document(**{section: {field: image}})).spec)


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
        ("https://evil.com\\@store.example.com/x", False),
        ("https://evil.com\\.store.example.com/x", False),
        ("https://store.example.com/x\\y", False),
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
