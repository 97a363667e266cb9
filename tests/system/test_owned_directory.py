"""Whether root may write where a path leads: who else could change the way to it."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from nodeside.errors import SystemRefused, UsageError
from nodeside.system import owned_directory
from nodeside.system.owned_directory import as_owner_of, open_directory, require_trusted

SOMEBODY, ANOTHER = 12345, 54321

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")


def directory(path: Path, owner: int = 0, mode: int = 0o755, group: int | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner if group is None else group)
    path.chmod(mode)
    return path


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """A directory as /tmp is: root's, where everybody may make files, and rename their own."""
    return directory(tmp_path / "sticky", mode=0o1777)


def owner_of(path: Path) -> int:
    with open_directory(path) as found:
        return found.owner


def refusal_of(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught, open_directory(path):
        pass
    return caught.value


def test_places_that_one_user_can_change(sticky: Path) -> None:
    home = directory(sticky / "home", SOMEBODY, 0o775)
    (home / "link").symlink_to(directory(home / "deep", SOMEBODY, 0o777))
    directory(sticky / "of-root")

    assert owner_of(sticky / "of-root") == owner_of(sticky / "of-root" / "new") == 0
    assert owner_of(sticky) == owner_of(sticky / "new" / "deep") == 0
    assert owner_of(home) == owner_of(home / "link" / "new" / "deep") == SOMEBODY


def test_relative_paths_and_links_of_root_lead_where_they_do_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "to-link").symlink_to(tmp_path / "link")
    monkeypatch.chdir(tmp_path / "a")

    for path in ("b", "../link", "../to-link/../b", str(tmp_path / "to-link")):
        with open_directory(Path(path)) as found:
            assert os.fstat(found.descriptor).st_ino == (tmp_path / "a" / "b").stat().st_ino
            assert found.rest == ()


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(SystemRefused, match="Too many levels"), open_directory(tmp_path / "a"):
        pass


def test_a_directory_of_root_below_one_of_a_user_is_refused(sticky: Path) -> None:
    home = directory(sticky / "home", SOMEBODY)
    ours = directory(home / "ours")

    refused = refusal_of(ours)

    assert str(refused) == (
        f"{ours} leads to a directory of root through {home}, which is of user {SOMEBODY}, who can "
        "put another in its place"
    )
    assert refused.hint.startswith("name a directory whose path belongs to root and the directory")


def test_a_link_of_a_user_to_somebody_elses_directory_is_refused(
    sticky: Path, tmp_path: Path
) -> None:
    home = directory(sticky / "home", SOMEBODY)
    for name, owner in (("roots", 0), ("theirs", ANOTHER)):
        (home / name).symlink_to(directory(tmp_path / name, owner))
        assert f"through {home}, which is of user {SOMEBODY}" in str(refusal_of(home / name))


def test_no_link_in_a_directory_of_everybody_is_followed(sticky: Path, tmp_path: Path) -> None:
    """Not even one of root: it may have been moved there from elsewhere."""
    (sticky / "link").symlink_to(tmp_path)

    refused = str(refusal_of(sticky / "link" / "new"))

    assert f"{sticky / 'link'} is a symbolic link to {tmp_path}, in a directory where" in refused


@pytest.mark.parametrize(("mode", "group"), [(0o777, 0), (0o775, 4), (0o2775, 50)])
def test_a_directory_of_root_where_others_can_rename_is_refused(
    tmp_path: Path, mode: int, group: int
) -> None:
    shared = directory(tmp_path / "shared", mode=mode, group=group)
    inside = directory(shared / "inside")

    for path in (shared, inside, inside / "new"):
        refused = refusal_of(path)
        assert f"{shared} is a directory of root, group {group}, with mode {mode:o}" in str(refused)
        assert refused.hint == f"let only the owner of an entry rename it: chmod +t {shared}"

    shared.chmod(mode | 0o1000)
    assert owner_of(inside) == 0


def test_all_directories_of_a_checkout_with_mode_777_are_mended_by_one_command(
    tmp_path: Path,
) -> None:
    """As a container of GitLab's runner has them, which clones with umask 0."""
    builds = directory(tmp_path / "builds", mode=0o777)
    checkout = directory(builds / "my board", mode=0o777)
    out = directory(checkout / "out", mode=0o777)
    (checkout / "link").symlink_to(out)

    refused = refusal_of(out / "new")

    assert str(refused).startswith(f"{builds} is a directory of root, group 0, with mode 777: ")
    said = "let only the owner of an entry rename it: chmod +t"
    assert refused.hint == f"{said} {builds} '{checkout}' '{out}'"
    assert refusal_of(checkout / "link").hint == f"{said} {builds} '{checkout}'"
    for each in (builds, checkout, out):
        each.chmod(0o1777)
    assert owner_of(out / "new") == 0


def give_rights(path: Path, user: int) -> None:
    """setfacl -m u:USER:rwx (include/uapi/linux/posix_acl_xattr.h)."""
    undefined, owner, named, group, mask, other = 0xFFFFFFFF, 0x01, 0x02, 0x04, 0x10, 0x20
    entries = [(owner, 7, undefined), (named, 7, user), (group, 5, undefined)]
    entries += [(mask, 7, undefined), (other, 5, undefined)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.fail(f"{path} is on a file system without ACLs, which this test needs: {error}")


def test_a_directory_of_root_where_an_acl_lets_somebody_write_is_shared(tmp_path: Path) -> None:
    shared = directory(tmp_path / "shared")
    victim = directory(tmp_path / "victim", mode=0o700)
    give_rights(shared, SOMEBODY)
    assert shared.stat().st_mode & 0o777 == 0o775

    assert f"{shared} is a directory of root, group 0, with mode 775" in str(refusal_of(shared))

    shared.chmod(0o1775)
    assert owner_of(shared) == 0
    (shared / "link").symlink_to(victim)
    assert "in a directory where other users may put one" in str(refusal_of(shared / "link"))
    shared.chmod(0o755)  # the mask: nobody else may write
    assert owner_of(shared / "link") == 0


def test_a_link_of_somebody_in_a_directory_of_root_is_not_followed_to_roots(
    tmp_path: Path,
) -> None:
    """However it came there: its owner could write in the directory at that time."""
    place, victim = directory(tmp_path / "place"), directory(tmp_path / "victim", mode=0o700)
    (place / "link").symlink_to(victim)
    os.chown(place / "link", SOMEBODY, SOMEBODY, follow_symlinks=False)

    refused = str(refusal_of(place / "link"))

    assert f"directory of root through {place / 'link'}, which is of user {SOMEBODY}" in refused


def test_what_appears_meanwhile_is_used_only_if_it_is_ours(sticky: Path, tmp_path: Path) -> None:
    for name in ("theirs", "link", "ours"):
        with open_directory(sticky / name / "below") as found:
            if name == "link":
                (sticky / name).symlink_to(tmp_path)
            else:
                directory(sticky / name, SOMEBODY if name == "theirs" else 0)
            if name == "ours":
                os.close(found.make())
                continue
            with pytest.raises(SystemRefused, match=f"{name} appeared meanwhile, and is "):
                found.make()

    assert [path.name for path in (sticky / "ours").iterdir()] == ["below"]
    assert not (tmp_path / "below").exists()
    assert not list((sticky / "theirs").iterdir())


def test_what_is_done_as_the_owner_is_the_owners(sticky: Path, tmp_path: Path) -> None:
    home = directory(sticky / "home", SOMEBODY)
    secret = tmp_path / "secret"
    secret.touch(0o600)

    with as_owner_of(home / "new") as here:
        os.seteuid(0)  # as somebody, in another process
        home.rename(sticky / "moved")
        directory(home, SOMEBODY)
        os.seteuid(SOMEBODY)
        (here / "file").write_text("of somebody")
        with pytest.raises(PermissionError):
            secret.read_text()

    assert os.geteuid() == 0
    assert secret.read_text() == ""
    assert not list(home.iterdir())
    written = sticky / "moved" / "new" / "file"
    assert written.stat().st_uid == written.parent.stat().st_uid == SOMEBODY


@pytest.mark.parametrize("step", ["setgroups", "setegid", "seteuid"])
def test_root_that_cannot_become_the_owner_says_so_and_stays_root(
    sticky: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Root without capabilities gets EPERM, and one of a user namespace EINVAL."""
    home = directory(sticky / "home", SOMEBODY)
    before = (os.getgroups(), os.getegid(), os.geteuid())
    real = getattr(os, step)

    def refuse(wanted: object) -> None:
        if wanted in ([], SOMEBODY, 65534):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(wanted)

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(SystemRefused) as caught, as_owner_of(home):
        pass

    assert str(caught.value) == (
        f"root cannot write with the rights of the directory's owner, user {SOMEBODY}: "
        "Operation not permitted"
    )
    assert caught.value.hint.startswith("run it as the owner of the directory, outside of a user")
    assert (os.getgroups(), os.getegid(), os.geteuid()) == before


def test_nobody_of_a_user_namespace_is_no_user(
    sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `unshare --map-root-user` maps them: the owner of all other files appears as nobody."""
    ours = directory(directory(sticky / "home", 65534) / "ours")
    monkeypatch.setattr(owned_directory, "_uid_map", lambda: "         0       1000          1\n")

    refused = str(refusal_of(ours))

    assert refused.endswith(
        "which is of a user whom this user namespace does not have, who can put another in its "
        "place"
    )


def test_a_directory_is_trusted_if_root_or_who_called_sudo_has_it(
    sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = directory(sticky / "home", SOMEBODY)
    monkeypatch.delenv("SUDO_UID", raising=False)
    require_trusted(sticky / "new", "the cache", "")
    with pytest.raises(UsageError, match=re.escape(f"the cache: {home} belongs to user 12345")):
        require_trusted(home, "the cache", "")

    monkeypatch.setenv("SUDO_UID", str(SOMEBODY))
    require_trusted(home / "new", "the cache", "")
    monkeypatch.setenv("SUDO_UID", str(ANOTHER))
    with pytest.raises(UsageError, match="the cache: "):
        require_trusted(home / "new", "the cache", "")
