"""Templates that read Secrets: what is said of a mistake in them."""

from __future__ import annotations

import pytest

from cluster.render.templates import StageInvalid, render_to_documents


@pytest.mark.parametrize(
    "text",
    [
        "{{ driver[reads.secrets.x.key] }}",
        "{{ reads.secrets.x.key }}",
        "a: !{{ reads.secrets.x.key }} 1",
    ],
)
def test_a_mistake_does_not_quote_a_secret(text: str) -> None:
    values = {"driver": {"a": 1}, "reads": {"secrets": {"x": {"key": "s3cr3t-t0ken"}}}}
    with pytest.raises(StageInvalid) as caught:
        render_to_documents("cm", {"a.yaml": f"k: 1\n---\n{text}"}, values)
    assert "s3cr3t" not in str(caught.value)
    assert str(caught.value).startswith("ConfigMap cm, a.yaml")
    assert "the mistake is not shown, since the stage reads a Secret" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: !{{ reads.secrets.x.key }} 1", "ConfigMap cm, a.yaml, rendered line 3"),
        ("{{ driver[reads.secrets.x.key] }}", "ConfigMap cm, a.yaml, line 3"),
    ],
)
def test_the_place_of_a_mistake_is_not_taken_from_what_it_quotes(text: str, place: str) -> None:
    values = {"driver": {"a": 1}, "reads": {"secrets": {"x": {"key": "rendered line 4711"}}}}
    with pytest.raises(StageInvalid) as caught:
        render_to_documents("cm", {"a.yaml": f"k: 1\n---\n{text}"}, values)
    hidden = "the mistake is not shown, since the stage reads a Secret"
    assert str(caught.value) == f"{place}: {hidden}"


def test_without_secrets_the_mistake_is_shown() -> None:
    values = {"driver": {"a": 1}, "reads": {"secrets": {}}}
    with pytest.raises(StageInvalid, match="has no attribute 'nothing'"):
        render_to_documents("cm", {"a.yaml": "{{ driver.nothing }}"}, values)
