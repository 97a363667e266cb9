"""What the kernel said last in a boot that ended badly, where pstore has kept it.

The kernel writes the end of its log to EFI variables, ERST or reserved memory (Documentation/
admin-guide/ramoops.rst); the next boot shows it in /sys/fs/pstore. systemd-pstore(8) moves it to
/var/lib/systemd/pstore, which a pod reaches by the root of the host's init if it may trace that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from nodeside.driver.node.kernel_log import find_splats, parse_syslog
from nodeside.log import escape_controls
from nodeside.system.files import UntrustedFile, open_untrusted
from nodeside.system.host import Host

_KEPT = "var/lib/systemd/pstore"
_FILES = 256  # looked at; EFI variables hold about 1 KiB each
_LIMIT = 1 << 20  # bytes of a file
_SLACK = 60.0  # seconds by which the clock may have been set back since
_WORDS = 300  # characters
_PART = re.compile(r"\w+#\d+ Part(\d{1,9})")


def read_last_words(host: Host, since: float) -> str:
    """Return the last complaints that a kernel left in pstore after `since`, "" if there are none.

    `since` is in seconds since the epoch.
    """
    parts = []
    for path in islice(_find_dumps(host), _FILES):
        text = _read_dump(path, since - _SLACK)
        found = _PART.match(text)
        parts.append((int(found[1]) if found else 0, text))
    # Part 1 is the newest piece of the log.
    parts.sort(key=lambda part: -part[0])
    lines = [escape_controls(line) for line in parse_syslog("\n".join(text for _, text in parts))]
    return "; ".join(find_splats(lines)[-2:])[:_WORDS]


def _find_dumps(host: Host) -> Iterator[Path]:
    for directory in (
        host.sys / "fs" / "pstore",
        host.root / _KEPT,
        host.proc / "1" / "root" / _KEPT,
    ):
        for where, _, names in os.walk(directory):
            yield from (Path(where) / name for name in sorted(names) if name.startswith("dmesg"))


def _read_dump(path: Path, since: float) -> str:
    try:
        if path.stat().st_mtime < since:
            return ""
        with open_untrusted(path, limit=_LIMIT) as file:
            return file.read(_LIMIT).decode(errors="replace")
    except (OSError, UntrustedFile):
        return ""
