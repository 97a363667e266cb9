"""What must hold on a node after whatever was done to it. Pure, but for the one look.

One shell script looks at everything at once, since a process in an emulated machine is dear.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.vm.pod import CACHE, SHARED, Pod

RUN = "/run/nodeside/tiny"
_LIMIT = 12  # entries of a directory that must not grow with the rounds
_DESCRIPTORS = 40  # of one process of the sidecar; it has about 12

# `name=value` lines. Nothing here starts a process for each process of the node.
_LOOK = f"""
note=/sys/module/tiny/notes/.note.gnu.build-id
[ -e $note ] && echo "loaded=$(tail -c 20 $note | hexdump -v -e '1/1 "%02x"')"
[ -e /sys/module/tiny/initstate ] && echo "initstate=$(cat /sys/module/tiny/initstate)"
[ -e {RUN}/ready ] && echo "ready=$(tr -d '\\n' < {RUN}/ready)"
find {CACHE} {SHARED} /var/lib/nodeside -name '.tmp-*' -o -name '.damaged-*' -o \
    -name 'nodeside-*' 2>/dev/null | sort -u | sed 's/^/leftover=/'
for each in requests results out source; do
  echo "entries=$(ls {SHARED}/$each 2>/dev/null | wc -l) {SHARED}/$each"
done
for each in /sys/fs/cgroup/container-*; do
  [ -e $each/cgroup.procs ] && echo "group=$(wc -l < $each/cgroup.procs) ${{each##*-}}"
done
echo "mounts=$(wc -l < /proc/mounts)"
cat /proc/[0-9]*/stat 2>/dev/null | awk '$3 == "Z" {{ print "zombie=" $2 }}'
ls -d /proc/[0-9]*/fd/* 2>/dev/null | awk -F/ '{{ n[$3]++ }} END {{ for (p in n) if (n[p] > \
    {_DESCRIPTORS}) print "descriptors=" n[p] " of pid " p }}'
true
"""


@dataclass(frozen=True)
class Sight:
    """What one look at a node found: `name=value` pairs, some names more than once."""

    pairs: tuple[tuple[str, str], ...]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]

    @property
    def ready(self) -> Mapping[str, Any] | None:
        """The ready file, as a consumer would read it."""
        return json.loads(self.one("ready")) if self.one("ready") else None


def look(pod: Pod) -> Sight:
    lines = pod.node("sh", "-c", _LOOK).splitlines()
    return Sight(tuple(_pair(line) for line in lines))


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name, value


def lies(sight: Sight, build_ids: Mapping[str, str]) -> Iterator[str]:
    """What a consumer is told and is not so. Must hold at any moment, whoever was killed."""
    ready = sight.ready
    if ready is None:
        return
    if sight.one("initstate") != "live":
        yield f"the ready file says {ready['version']}, and no module is live"
    elif sight.one("loaded") != build_ids[ready["version"]]:
        yield f"the ready file says {ready['version']}, and the kernel has {sight.one('loaded')}"


def faults(
    sight: Sight, version: str, build_ids: Mapping[str, str], *, mounts: int, sidecar: int
) -> Iterator[str]:
    """What does not hold after a run that ended with `ready`. `sidecar` is its container's id."""
    yield from lies(sight, build_ids)
    if sight.one("loaded") != build_ids[version]:
        yield f"version {version} is ready, and the kernel has {sight.one('loaded') or 'none'}"
    if sight.ready is None or sight.ready["version"] != version:
        yield f"version {version} was brought up, and the ready file says {sight.ready}"
    yield from (f"left behind: {name}" for name in sight.all("leftover"))
    yield from _grown(sight.all("entries"))
    for group in sight.all("group"):
        processes, _, number = group.partition(" ")
        if int(number) != sidecar:
            yield f"a container that ended still has {processes} processes"
    if int(sight.one("mounts")) > mounts:
        yield f"{sight.one('mounts')} mounts, at first {mounts}"
    yield from (f"a zombie: {name}" for name in sight.all("zombie"))
    yield from (f"open files: {text}" for text in sight.all("descriptors"))


def _grown(entries: Iterable[str]) -> Iterator[str]:
    for entry in entries:
        count, _, place = entry.partition(" ")
        if int(count) > _LIMIT:
            yield f"{count} entries in {place}"
