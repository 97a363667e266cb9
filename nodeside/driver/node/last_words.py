"""What the kernel said last in a boot that ended badly, where pstore has kept it.

The kernel writes the end of its log to EFI variables, ERST or reserved memory (Documentation/
admin-guide/ramoops.rst); the next boot shows it in /sys/fs/pstore. systemd-pstore(8) moves it to
/var/lib/systemd/pstore, which a pod reaches by the root of the host's init if it may trace that.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from nodeside import log
from nodeside.driver.node.kernel_log import find_splats, parse_syslog
from nodeside.log import escape_controls
from nodeside.system.files import UntrustedFile, open_untrusted
from nodeside.system.host import Host
from nodeside.values import frozen

_KEPT = "var/lib/systemd/pstore"
_ENTRIES = 4096  # of a directory and all below it that are looked at
_FILES = 256  # read; EFI variables hold about 1 KiB each
_LIMIT = 1 << 20  # bytes of all files together
_SLACK = 60.0  # seconds by which the clock may have been set back since
_WORDS = 300  # characters
_PART = re.compile(r"\w+#\d+ Part(\d{1,9})")


def read_last_words(host: Host, since: float) -> str:
    """Return the last complaints that a kernel left in pstore after `since`, "" if there are none.

    `since` is in seconds since the epoch. Of many files, the newest are read, up to a limit.
    """
    directories = (
        host.sys / "fs" / "pstore",
        host.root / _KEPT,
        host.proc / "1" / "root" / _KEPT,
    )
    dumps = [each for place in directories for each in _find_dumps(place, since - _SLACK)]
    texts = _read_newest(dumps)
    parts = []
    for text in (texts[dump.path] for dump in dumps if dump.path in texts):
        found = _PART.match(text)
        parts.append((int(found[1]) if found else 0, text))
    # Part 1 is the newest piece of the log.
    parts.sort(key=lambda part: -part[0])
    lines = [escape_controls(line) for line in parse_syslog("\n".join(text for _, text in parts))]
    return "; ".join(find_splats(lines)[-2:])[:_WORDS]


@frozen
class _Dump:
    """A file of pstore. `written` is in seconds since the epoch."""

    path: Path
    written: float


def _find_dumps(directory: Path, since: float) -> list[_Dump]:
    """Return the newest dumps in a directory or below it, by name."""
    found = []
    entries = _walk_entries(directory)
    for entry in islice(entries, _ENTRIES):
        with suppress(OSError):
            if entry.name.startswith("dmesg") and entry.is_file(follow_symlinks=False):
                found.append(_Dump(Path(entry.path), entry.stat(follow_symlinks=False).st_mtime))
    if next(entries, None) is not None:
        log.warning(f"of {directory}, only {_ENTRIES} entries were looked at for a kernel's dumps")
    fresh = [dump for dump in found if dump.written >= since]
    newest = heapq.nlargest(_FILES, fresh, key=lambda dump: dump.written)
    return sorted(newest, key=lambda dump: dump.path)


def _walk_entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory and of those below it. What cannot be listed has none."""
    pending = [str(directory)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                yield entry


def _read_newest(dumps: Sequence[_Dump]) -> dict[Path, str]:
    """Return the texts of the newest of these, as many as may be held at once."""
    texts: dict[Path, str] = {}
    left = _LIMIT
    for number, dump in enumerate(sorted(dumps, key=lambda dump: dump.written, reverse=True)):
        try:
            with open_untrusted(dump.path, limit=_LIMIT) as file:
                data = file.read(left + 1)
        except (OSError, UntrustedFile):
            continue
        left -= len(data)
        if left < 0:
            log.warning(
                f"{len(dumps) - number} of {len(dumps)} dumps of the kernel were not read, such as "
                f"{dump.path}: of the newest together {_LIMIT} bytes are read"
            )
            break
        texts[dump.path] = data.decode(errors="replace")
    return texts
