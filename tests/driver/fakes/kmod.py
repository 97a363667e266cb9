"""What kmod (modinfo, modprobe) says of module files: the judge of our own reader.

The tools are those of a toolkit root file system, started by its own loader: this machine needs
none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.system.process import Completed, run

_BATCH = 100  # modules per modinfo


@dataclass(frozen=True)
class Tools:
    """Programs of a root file system, run from outside of it."""

    root: Path

    def run(self, program: Path, *words: str | Path, name: str = "") -> Completed:
        """Start a program of that root, or one built for it, under the name that it looks at."""
        libraries = ":".join(
            str(self.root / path) for path in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
        )
        loader = self.root / "lib64/ld-linux-x86-64.so.2"
        argv: list[str | Path] = [
            loader,
            "--library-path",
            libraries,
            "--argv0",
            name or str(program),
            program,
        ]
        return run([*argv, *words], timeout=60)

    def modinfo(self, files: Sequence[Path]) -> dict[Path, dict[str, list[str]]]:
        """Every field of every module."""
        found: dict[Path, dict[str, list[str]]] = {}
        for start in range(0, len(files), _BATCH):
            batch = files[start : start + _BATCH]
            out = self.run(self.root / "usr/bin/kmod", "-0", *batch, name="modinfo").output
            fields: dict[str, list[str]] = {}
            for entry in out.split("\0"):
                if entry.startswith("filename:"):
                    fields = found.setdefault(Path(entry.removeprefix("filename:").strip()), {})
                    continue
                key, _, value = entry.partition("=")
                fields.setdefault(key, []).append(value)
        return found

    def modversions(self, file: Path) -> dict[str, int]:
        """The CRCs that a module asks for."""
        kmod = self.root / "usr/bin/kmod"
        out = self.run(kmod, "--dump-modversions", file, name="modprobe").output
        rows = (line.split() for line in out.splitlines())
        return {name: int(crc, 16) for crc, name in rows}


def differences(module: ModuleFile, info: dict[str, list[str]], crcs: dict[str, int]) -> list[str]:
    """Where our reader and kmod disagree about a module."""
    signature = module.signature
    ours = {
        "name": [module.name],
        "vermagic": [module.vermagic],
        "srcversion": [module.srcversion],
        "license": [module.license],
        "depends": [",".join(module.depends)],
        "import_ns": list(module.import_namespaces),
        "signer": [signature.signer if signature else ""],
        "sig_key": [signature.key_id if signature else ""],
        "sig_hashalgo": [signature.hash if signature else ""],
    }
    theirs = {key: info.get(key, [""] if value else []) for key, value in ours.items()}
    theirs["license"] = theirs["license"][:1]  # one module has two; the kernel takes the first
    theirs["depends"] = [theirs["depends"][0].replace("-", "_")]
    theirs["sig_key"] = [theirs["sig_key"][0].replace(":", "").lower()]
    wrong = [
        f"{module.path.name}: {key}: {value} is {theirs[key]} for modinfo"
        for key, value in ours.items()
        if value != theirs[key]
    ]
    parameters = {value.partition(":")[0] for value in info.get("parm", [])}
    wrong += [f"{module.path.name}: no parameter {p}" for p in parameters - set(module.parameters)]
    imports = {**module.imports, **module.weak_imports}
    if {name: crc for name, crc in imports.items() if crc is not None} != crcs:
        wrong.append(f"{module.path.name}: other CRCs than modprobe --dump-modversions")
    return wrong
