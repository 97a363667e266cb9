"""Debian packages, fetched by apt with private state. The host's apt is left unchanged.

On a Debian host, the host's own sources are used (those whose origin is Debian), with the host's
proxy and TLS settings. Elsewhere, the sources that mmdebstrap has for Debian are used.
NODESIDE_MIRROR selects another mirror, NODESIDE_SUITE another release.

    <cache>/archive/<digest of the settings>/
      apt.conf, sources.list    apt's configuration
      state/, cache/            apt's state
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodeside.system import process
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.cache import TrialCache, digest_of
from nodeside.trial.errors import ArchiveError
from nodeside.trial.progress import Progress
from nodeside.values import frozen

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEFAULT_SUITE = "bookworm"  # if the host is not Debian; the release that the tests run on
_FRESH = 24 * 3600.0  # seconds before package lists are fetched again
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")


def proxy_environment() -> dict[str, str]:
    """Return the caller's proxy variables. Only the tools that fetch something need them."""
    names = [name for low in _PROXIES for name in (low, low.upper())]
    return {name: os.environ[name] for name in names if name in os.environ}


_OTHER_COMPONENTS = ("contrib", "non-free")


@frozen
class Sources:
    """The sources of packages in one-line format, and the suite for mmdebstrap."""

    suite: str
    lines: tuple[str, ...]


class Archive:
    """One package archive. All network access is announced on `progress`."""

    def __init__(
        self, cache: TrialCache, progress: Progress, architecture: Architecture = AMD64
    ) -> None:
        self.cache = cache
        self.progress = progress
        self.architecture = architecture
        self._sources: Sources | None = None
        self._names: tuple[str, ...] | None = None

    @property
    def sources(self) -> Sources:
        if self._sources is None:
            self._sources = self._find_sources()
        return self._sources

    @property
    def digest(self) -> str:
        """Return a digest of the sources, for the names of things made from this archive."""
        foreign = (self.architecture.name,) if self.architecture.is_foreign else ()
        return digest_of("\n".join((self.sources.suite, *self.sources.lines, *foreign)))

    def not_free(self) -> Archive:
        """Return the same archive's other components, contrib and non-free; zfs-dkms is there."""
        other = Archive(self.cache, self.progress, self.architecture)
        other._sources = Sources(self.sources.suite, other_components(self.sources.lines))
        return other

    def names(self) -> tuple[str, ...]:
        """Return the names of all packages."""
        if self._names is None:
            self._names = tuple(self._apt_cache("pkgnames").split())
        return self._names

    def depends(self, package: str) -> tuple[str, ...]:
        """Return direct dependencies with all alternatives; empty if there is no such package."""
        return tuple(name for names in self.alternatives(package) for name in names)

    def alternatives(self, package: str) -> tuple[tuple[str, ...], ...]:
        """Return direct dependencies, each as the packages of which one is enough."""
        groups: list[tuple[str, ...]] = []
        more = False
        for row in self._apt_cache("depends", package, check=False).splitlines():
            # apt-cache marks with a bar what has another alternative in the next line
            if match := re.match(r"^\s*(\|?)Depends: <?([^\s:>]+)", row):
                before = groups.pop() if more else ()
                groups.append((*before, match[2]))
                more = bool(match[1])
        return tuple(groups)

    def show(self, package: str) -> Mapping[str, str]:
        """Return the fields of the version that would be installed; empty if there is none."""
        text = self._apt_cache("show", "--no-all-versions", package, check=False)
        pairs = (line.split(": ", 1) for line in text.splitlines() if re.match(r"^[\w-]+: ", line))
        return {pair[0]: pair[1] for pair in pairs}

    def download(self, packages: Sequence[str], directory: Path) -> tuple[Path, ...]:
        """Fetch package files into `directory`. If that fails, renew the lists and retry once."""
        try:
            self._download_once(packages, directory)
        except process.ToolError:
            self.update()
            try:
                self._download_once(packages, directory)
            except process.ToolError as exc:
                raise _archive_error(f"cannot fetch {', '.join(packages)}", exc) from exc
        return tuple(sorted(directory.glob("*.deb")))

    def update(self) -> None:
        """Renew the package lists. Old lists are used if the archive cannot be reached."""
        self.progress.print_step("fetching the package lists")
        directory = self._prepare_apt_directory(self.sources)
        try:
            self._update_lists(directory)
        except process.ToolError as exc:
            if not _stamp_path(directory).exists():
                raise _archive_error("cannot fetch the package lists", exc) from exc
            self.progress.print_step("the archive cannot be reached; using the old package lists")
        self._names = None

    def read_apt_settings(self) -> tuple[str, ...]:
        """Return the host's apt settings for fetching (proxy, TLS), as `apt.conf` lines."""
        rows = process.run(["apt-config", "dump"], timeout=30).output.splitlines()
        return tuple(
            row
            for row in rows
            if row.startswith("Acquire::")
            and not re.match(r"Acquire::(IndexTargets|Changelogs)", row)
        )

    # --- where packages come from

    def _find_sources(self) -> Sources:
        suite = os.environ.get("NODESIDE_SUITE", "")
        if mirror := os.environ.get("NODESIDE_MIRROR"):
            suite = suite or _host_suite() or DEFAULT_SUITE
            return Sources(
                suite, tuple(_sources_line(mirror, s) for s in (suite, f"{suite}-updates"))
            )
        if _host_suite() and not suite:
            return Sources(_host_suite(), self._host_sources())
        return Sources(suite or DEFAULT_SUITE, self._mmdebstrap_sources(suite or DEFAULT_SUITE))

    def _host_sources(self) -> tuple[str, ...]:
        """Return the host's sources of origin Debian. Only the fetched lists state the origin."""
        entry = self.cache.make("sources", digest_of(_host_sources_text()), self._ask_host_sources)
        return tuple((entry / "sources.list").read_text().splitlines())

    def _ask_host_sources(self, directory: Path) -> None:
        self.progress.print_step("fetching the package lists")
        apt = directory / "apt"
        _write_settings(apt, AMD64, None, self.read_apt_settings())
        try:
            self._update_lists(apt)
        except process.ToolError as exc:
            if not any((apt / "state" / "lists").glob("*_Packages*")):
                raise _archive_error("cannot fetch the package lists", exc) from exc
        targets = _run_apt("apt-get", "indextargets", "Created-By: Packages", conf=apt)
        lines = dict.fromkeys(debian_lines(targets))
        if not lines:
            raise ArchiveError(
                "the host's apt sources name no Debian archive",
                hint="set NODESIDE_MIRROR to the URL of a Debian mirror",
            )
        (directory / "sources.list").write_text("\n".join(lines))

    def _mmdebstrap_sources(self, suite: str) -> tuple[str, ...]:
        entry = self.cache.make("sources", suite, lambda path: _ask_mmdebstrap(suite, path))
        return tuple((entry / "sources.list").read_text().splitlines())

    # --- running apt

    def _prepare_apt_directory(self, sources: Sources) -> Path:
        directory = self.cache.path("archive", self.digest)
        with self.cache.hold_lock("archive", self.digest):
            if not (directory / "apt.conf").exists():
                _write_settings(directory, self.architecture, sources, self.read_apt_settings())
                self._adopt_lists(directory, sources)
        return directory

    def _adopt_lists(self, directory: Path, sources: Sources) -> None:
        """Reuse the lists fetched to find the host's Debian sources, to save a second fetch."""
        entry = self.cache.path("sources", digest_of(_host_sources_text()))
        apt = entry / "apt"
        if self.architecture.is_foreign or not _stamp_path(apt).exists():
            return
        if tuple((entry / "sources.list").read_text().splitlines()) == sources.lines:
            shutil.copytree(apt / "state", directory / "state", dirs_exist_ok=True)
            shutil.copy2(_stamp_path(apt), _stamp_path(directory))

    def _apt_directory_with_fresh_lists(self) -> Path:
        directory = self._prepare_apt_directory(self.sources)
        stamp = _stamp_path(directory)
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > _FRESH:
            self.update()
        return directory

    def _update_lists(self, directory: Path) -> None:
        with self.cache.hold_lock("archive", "update"):
            with self.progress.show_growth(directory / "state"):
                _run_apt("apt-get", "update", "-q", "--error-on=any", conf=directory, timeout=600)
            _stamp_path(directory).touch()

    def _apt_cache(self, *words: str, check: bool = True) -> str:
        return _run_apt(
            "apt-cache", *words, conf=self._apt_directory_with_fresh_lists(), check=check
        )

    def _download_once(self, packages: Sequence[str], directory: Path) -> None:
        conf = self._apt_directory_with_fresh_lists()
        with self.progress.show_growth(directory):
            _run_apt("apt-get", "download", "-q", *packages, conf=conf, timeout=1800, cwd=directory)


def unpack_package(package: Path, directory: Path) -> None:
    """Unpack a .deb below a directory without running its code, and without setuid or setgid."""
    process.run(["dpkg-deb", "-x", package, directory], timeout=600)
    process.run(["chmod", "-R", "u-s,g-s", directory], timeout=120)


def _run_apt(
    *argv: str, conf: Path, timeout: float = 120, cwd: Path | None = None, check: bool = True
) -> str:
    env = proxy_environment() | {"APT_CONFIG": str(conf / "apt.conf")}
    return process.run(argv, env=env, timeout=timeout, cwd=cwd, check=check).output


def _write_settings(
    directory: Path,
    architecture: Architecture,
    sources: Sources | None,
    settings: Sequence[str],
) -> None:
    """Write an apt.conf that replaces the host's and keeps its state below `directory`."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "status").touch()
    rows = [
        *settings,
        'Dir::Etc::main "/dev/null";',
        'Dir::Etc::parts "/dev/null";',
        f'Dir::State "{directory}/state";',
        f'Dir::State::status "{directory}/status";',
        f'Dir::Cache "{directory}/cache";',
        'APT::Sandbox::User "root";',
        f'APT::Architecture "{architecture.name}";',
        f'APT::Architectures {{ "{architecture.name}"; }};',
        'Acquire::Languages "none";',
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";',
        'Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";',
        'Acquire::Retries "3";',
    ]
    if sources is not None:
        _write_private(directory / "sources.list", "\n".join(sources.lines) + "\n")
        rows += [
            f'Dir::Etc::sourcelist "{directory}/sources.list";',
            'Dir::Etc::sourceparts "/dev/null";',
        ]
    _write_private(directory / "apt.conf", "\n".join(rows) + "\n")


def _write_private(path: Path, text: str) -> None:
    """Write a file that only we can read: settings and sources of apt may hold passwords."""
    path.unlink(missing_ok=True)
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def _ask_mmdebstrap(suite: str, directory: Path) -> None:
    """Let mmdebstrap write its sources.list and then stop it: its second hook is /bin/false."""
    hooks = [f"--setup-hook=copy-out /etc/apt/sources.list {directory}", "--setup-hook=/bin/false"]
    root = directory / "root"
    argv = ["mmdebstrap", "--variant=custom", "--mode=root", *hooks, suite, str(root)]
    done = process.run(argv, timeout=120, check=False, env=proxy_environment())
    if not (directory / "sources.list").exists():
        raise ArchiveError(
            f"mmdebstrap knows no Debian release named {suite}\n"
            f"{process.last_lines_of(done.errors)}",
            hint="set NODESIDE_SUITE to a release of Debian",
        )
    lines = (directory / "sources.list").read_text().splitlines()
    signed = [re.sub(r"^deb (?!\[)", f"deb {_signed_by()}", line) for line in lines if line]
    (directory / "sources.list").write_text("\n".join(signed))


def debian_lines(targets: str) -> list[str]:
    """Return the one-line sources in `apt-get indextargets` whose origin is Debian."""
    lines = []
    for block in targets.split("\n\n"):
        pairs = (line.split(": ", 1) for line in block.splitlines() if ": " in line)
        fields = {pair[0]: pair[1] for pair in pairs}
        if fields.get("Origin") == "Debian":
            where = f"{fields['Repo-URI']} {fields['Release']} {fields['Component']}"
            lines.append(f"deb {_signed_by()}{where}")
    return lines


def other_components(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the sources of contrib and non-free that belong to these sources of main."""
    mains = (line.removesuffix(" main") for line in lines if line.endswith(" main"))
    return tuple(f"{main} {component}" for main in mains for component in _OTHER_COMPONENTS)


def _sources_line(mirror: str, suite: str) -> str:
    return f"deb {_signed_by()}{mirror} {suite} main"


def _signed_by() -> str:
    return f"[signed-by={KEYRING}] " if KEYRING.exists() else ""


def _host_suite() -> str:
    """Return the code name of the host's release if the host is Debian, else ""."""
    try:
        rows = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return ""
    fields = {key: value.strip('"') for key, _, value in (row.partition("=") for row in rows)}
    return fields.get("VERSION_CODENAME", "") if fields.get("ID") == "debian" else ""


def _host_sources_text() -> str:
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())


def _stamp_path(directory: Path) -> Path:
    return directory / "updated"


def _archive_error(what: str, exc: process.ToolError) -> ArchiveError:
    errors = [row for row in exc.completed.errors.splitlines() if row.startswith(("E:", "W:"))]
    return ArchiveError(
        "\n".join([what, *errors[-5:]]),
        hint="check the network and the proxy, or set NODESIDE_MIRROR to a Debian mirror",
    )
