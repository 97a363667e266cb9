"""Opens a directory in which root writes for its owner, without trusting the path to it.

A user names a path to a command that runs as root. Whoever owns a directory on that path, or may
rename what is in it, can put a link or another directory in the place of the next one. So each name
is opened by itself below the one before. A path is refused if somebody else than the owner of the
directory that it ends in could change it.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodeside.errors import SystemRefused, UsageError
from nodeside.system.files import disk_errors

_ROOT = 0
_NOBODY = 65534
_ACL = "system.posix_acl_access"
_LINKS = 40  # on one path, as the kernel's limit


@dataclass
class OwnedDirectory:
    """A directory that a user named, which may not exist yet.

    `descriptor` is the deepest directory of `path` that exists, and `owner` owns it. `rest` are the
    names of the directories to make below it. `others` are the users who may change the path, each
    with the place where.
    """

    path: Path
    descriptor: int
    owner: int
    rest: tuple[str, ...] = ()
    others: dict[int, Path] = field(default_factory=dict)

    def make(self) -> int:
        """Make the directory with the rights that we have; return its descriptor.

        What appeared there meanwhile is used only if it is a directory of the same owner. Raises
        OSError, SystemRefused.
        """
        here, makers = os.dup(self.descriptor), (self.owner, os.geteuid())
        for name in self.rest:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            here = _replace_descriptor(here, os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=here))
            found = os.fstat(here)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in makers:
                os.close(here)
                raise SystemRefused(
                    f"{self.path}: {name} appeared meanwhile, and is {_show_rights(found)}; "
                    "nothing was written to it",
                    hint="name a directory that is there already, and that nobody else can replace",
                )
        return here


@contextmanager
def open_directory(path: Path, trusted: Collection[int] = ()) -> Iterator[OwnedDirectory]:
    """Open a directory, or the one that it will be made in.

    Root gets a UsageError if the path may be changed by a user who is neither the directory's owner
    nor among `trusted`. Raises UsageError, SystemRefused.
    """
    with disk_errors(path):
        found = _open_components(path)
    try:
        if os.geteuid() == _ROOT:
            _require_one_owner(found, trusted)
        yield found
    finally:
        os.close(found.descriptor)


@contextmanager
def as_owner_of(path: Path) -> Iterator[Path]:
    """Make a directory and take its owner's rights for the block, if we are root.

    The yielded path leads to the directory even if its name is given to another one. Raises
    UsageError, SystemRefused.
    """
    if os.geteuid() != _ROOT:
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with open_directory(path) as found, _with_rights_of(found.owner):
        with disk_errors(path):
            descriptor = found.make()
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


def require_trusted(path: Path, what: str, hint: str) -> None:
    """Raise UsageError if a user other than root, and the one who called sudo, may change a path.

    This is for directories whose files root opens by their paths.
    """
    caller = os.environ.get("SUDO_UID", "")
    trusted = {_ROOT, int(caller) if caller.isdigit() else _ROOT}
    try:
        with open_directory(path, trusted) as found:
            if os.geteuid() == _ROOT and found.owner not in trusted:
                raise UsageError(f"{path} belongs to {user_name(found.owner)}, not to root")
    except UsageError as error:
        raise UsageError(f"{what}: {error}", hint=hint) from None


def group_of(user: int) -> int:
    """Return the first group of a user."""
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:
        return _NOBODY


def user_name(user: int) -> str:
    """Return the name of a user in words."""
    if not _is_mapped(user):
        return "a user whom this user namespace does not have"
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def cannot_become_error(user: int, error: OSError) -> SystemRefused:
    """Return the error for a root without capabilities, or in a user namespace."""
    return SystemRefused(
        f"root cannot write with the rights of the directory's owner, {user_name(user)}: "
        f"{error.strerror}",
        hint="run it as the owner of the directory, outside of a user namespace; or as root with "
        "CAP_SETUID and CAP_SETGID",
    )


def _is_mapped(user: int) -> bool:
    """Return whether a user namespace has a user (user_namespaces(7)): others appear as nobody."""
    rows = (map(int, line.split()) for line in _uid_map().splitlines())
    return any(first <= user < first + count for first, _, count in rows)


def _uid_map() -> str:
    return Path("/proc/self/uid_map").read_text(encoding="ascii")


# --- the walk ---------------------------------------------------------------------------------


def _open_components(path: Path) -> OwnedDirectory:
    """Open each name of a path below the one before, links too. Raises OSError, UsageError."""
    names = list(reversed(path.absolute().parts))
    here, at, links = os.open(names.pop(), os.O_PATH | os.O_DIRECTORY), Path("/"), 0
    others: dict[int, Path] = {}
    shared: list[Path] = []
    try:
        while names:
            shared += [at] if _others_may_rename(here) else []
            others |= _owner_unless_root(here, at)
            try:
                entry = os.open(names[-1], os.O_PATH | os.O_NOFOLLOW, dir_fd=here)
            except FileNotFoundError:
                break
            name, found = names.pop(), os.fstat(entry)
            others |= _owner_of_entry(here, found, at / name)
            if stat.S_ISLNK(found.st_mode):
                _require_not_shared(shared)
                target = Path(os.readlink("", dir_fd=entry))
                os.close(entry)
                links += 1
                _require_followable_link(here, at / name, target, links)
                names += [part for part in reversed(target.parts) if part != "/"]
                if target.is_absolute():
                    here, at = (
                        _replace_descriptor(here, os.open("/", os.O_PATH | os.O_DIRECTORY)),
                        Path("/"),
                    )
                continue
            here, at = _replace_descriptor(here, entry), at / name
            if not stat.S_ISDIR(found.st_mode):
                raise UsageError(f"{at} is a file: expected a directory")
        else:
            shared += [at] if _others_may_rename(here) else []
        _require_not_shared(shared)
        return OwnedDirectory(path, here, os.fstat(here).st_uid, tuple(reversed(names)), others)
    except BaseException:
        os.close(here)
        raise


def _owner_unless_root(directory: int, at: Path) -> dict[int, Path]:
    """Return the owner of a directory, who may put another entry in it."""
    owner = os.fstat(directory).st_uid
    return {owner: at} if owner != _ROOT else {}


def _owner_of_entry(directory: int, entry: os.stat_result, at: Path) -> dict[int, Path]:
    """Return the owner of an entry of a directory such as /tmp, who may rename it.

    A link that is not root's tells by itself that its owner could write in the directory.
    """
    mine = stat.S_ISLNK(entry.st_mode) or _others_may_write(directory)
    return {entry.st_uid: at} if mine and entry.st_uid != _ROOT else {}


def _others_may_write(directory: int) -> bool:
    """Return whether others than root can put something in a directory of root.

    Whom the owner of any other directory lets write there is up to that owner. With an ACL, the
    bits of the group are the most that any user or group of the ACL may do (acl(5)).
    """
    found = os.fstat(directory)
    if found.st_uid != _ROOT:
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    by_group = found.st_mode & stat.S_IWGRP
    return bool(by_group) and (found.st_gid != _ROOT or _has_acl(directory))


def _has_acl(directory: int) -> bool:
    """Return whether a directory may have an ACL: only a file system without any is known not to.

    The descriptor is of O_PATH, so it has to be named.
    """
    try:
        os.getxattr(f"/proc/self/fd/{directory}", _ACL)
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True


def _others_may_rename(directory: int) -> bool:
    """Return whether others may rename what is not theirs in a directory of root."""
    sticky = os.fstat(directory).st_mode & stat.S_ISVTX
    return os.geteuid() == _ROOT and not sticky and _others_may_write(directory)


def _require_not_shared(shared: Sequence[Path]) -> None:
    """Raise UsageError if there are directories of root in which others may rename entries.

    The message names the outermost one, and the hint has a command for all: in a container, every
    directory of a path may have mode 0777.
    """
    if not shared:
        return
    every = " ".join(shlex.quote(str(each)) for each in dict.fromkeys(shared))
    raise UsageError(
        f"{shared[0]} is {_show_rights(shared[0].stat())}: others can rename what is in it, and "
        "choose where root writes",
        hint=f"let only the owner of an entry rename it: chmod +t {every}",
    )


def _require_followable_link(parent: int, link: Path, target: Path, links: int) -> None:
    if links > _LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(link))
    if os.geteuid() == _ROOT and _others_may_write(parent):
        raise UsageError(
            f"{link} is a symbolic link to {target}, in a directory where other users may put one",
            hint="name the directory that you mean, without the link",
        )


def _require_one_owner(found: OwnedDirectory, trusted: Collection[int]) -> None:
    for user, at in found.others.items():
        if user != found.owner and user not in trusted:
            raise UsageError(
                f"{found.path} leads to a directory of {user_name(found.owner)} through {at}, "
                f"which is of {user_name(user)}, who can put another in its place",
                hint="name a directory whose path belongs to root and the directory's owner alone",
            )


def _show_rights(found: os.stat_result) -> str:
    kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no directory"
    mode = stat.S_IMODE(found.st_mode)
    return f"{kind} of {user_name(found.st_uid)}, group {found.st_gid}, with mode {mode:o}"


def _replace_descriptor(old: int, new: int) -> int:
    os.close(old)
    return new


@contextmanager
def _with_rights_of(user: int) -> Iterator[None]:
    """Take the rights of a user for a while. The process has one thread that writes."""
    if user == _ROOT:
        yield
        return
    with ExitStack() as restored:
        try:
            groups, group = os.getgroups(), os.getegid()
            os.setgroups([])
            restored.callback(os.setgroups, groups)
            os.setegid(group_of(user))
            restored.callback(os.setegid, group)
            os.seteuid(user)
            restored.callback(os.seteuid, _ROOT)
        except OSError as error:
            raise cannot_become_error(user, error) from None
        yield
