"""Reads disk images without mounting them."""

from __future__ import annotations

from pathlib import Path

from nodeside.system import process


def debugfs(image: Path, request: str) -> str:
    return process.run(["debugfs", "-R", request, image], timeout=20).output
