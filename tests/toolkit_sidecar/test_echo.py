"""The lines of a build in the sidecar's own output, which a container's runtime keeps on disk."""

from __future__ import annotations

import json

import pytest

from nodeside.toolkit_sidecar.cli import _Echo


@pytest.mark.parametrize("as_json", [False, True])
def test_of_one_build_so_much_is_shown_and_no_more_which_is_said_once(
    as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    echo = _Echo(as_json=as_json, limit=1000)
    for number in range(1000):
        echo("abababababab-1", [f"line {number}"])
    echo("abababababab-2", ["another build"])
    said = capfd.readouterr().out.splitlines()
    if as_json:  # what stands around a line counts too
        assert len(said) < 12
        said = [json.loads(line)["message"] for line in said]
    assert said[:2] == ["line 0", "line 1"]
    assert said[-2:] == [
        "# the rest of this build is not shown here: the limit is 1000 bytes",
        "another build",
    ]
    assert sum(map(len, said)) < 1100
