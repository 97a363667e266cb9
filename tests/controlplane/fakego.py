"""A Go toolchain that writes down what it is asked to build."""

from __future__ import annotations

from pathlib import Path


def program(directory: Path, name: str, said: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    path.chmod(0o755)
    return path


def fake_go(directory: Path) -> Path:
    """Writes `ok` as every program, and a line into `builds` for each time it is called."""
    go = program(directory, "go", "")
    go.write_text(
        f"#!/bin/sh\necho build >> {directory}/builds\n"
        'while [ "$1" != -o ]; do shift; done; out=$2; shift 2; mkdir -p "$out"\n'
        'for package; do package=${package%/v3}; echo ok > "$out/${package##*/}"; done\n'
    )
    return go
