"""Signing for real, with openssl: what is signed verifies, and everything wrong is said."""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import read_module
from nodeside.driver.module.signature import (
    MARKER,
    TRAILER,
    AppendedSignature,
    Signature,
    describe_signature,
    find_appended,
)
from nodeside.driver.module.signing import (
    SigningError,
    kernel_hash,
    read_certificate,
    sign_module,
    verify_module,
)
from nodeside.system.host import Host
from nodeside.system.process import ToolMissing, run
from tests.driver.fakes.keys import SPECIMEN, Pair, make_pair


def read_signature(data: bytes) -> Signature | None:
    return describe_signature(find_appended(io.BytesIO(data), "module"))


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("acme"), "Acme module key")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("other"), "Other key")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    return Path(shutil.copy(SPECIMEN, tmp_path / "specimen.ko"))


@pytest.mark.slow
def test_signed_module_verifies_and_says_who_signed_it(module: Path, acme: Pair) -> None:
    module.chmod(0o640)
    sign_module(module, acme.key, acme.certificate, "sha512")

    verify_module(module, acme.certificate)
    signature = read_module(module).signature
    assert signature == read_signature(module.read_bytes())
    assert signature is not None
    assert (signature.signer, signature.hash) == ("Acme module key", "sha512")
    assert signature.key_id == read_certificate(acme.certificate).serial
    assert module.read_bytes().startswith(SPECIMEN.read_bytes())
    assert module.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in module.parent.iterdir()] == ["specimen.ko"]


@pytest.mark.slow
def test_signing_does_not_change_what_the_module_is(module: Path, acme: Pair) -> None:
    before = read_module(module)
    sign_module(module, acme.key, acme.certificate)
    after = read_module(module)

    assert (after.build_id, after.imports) == (before.build_id, before.imports)
    assert after.sha256 != before.sha256


@pytest.mark.slow
def test_signing_again_replaces_the_signature(module: Path, acme: Pair, other: Pair) -> None:
    sign_module(module, other.key, other.certificate, "sha256")
    size = module.stat().st_size
    sign_module(module, acme.key, acme.certificate, "sha256")
    first = module.read_bytes()
    sign_module(module, acme.key, acme.certificate, "sha256")

    assert module.read_bytes() == first
    assert module.read_bytes().count(MARKER) == 1
    assert abs(module.stat().st_size - size) < 20
    verify_module(module, acme.certificate)


@pytest.mark.slow
def test_der_certificate_is_as_good_as_pem(module: Path, acme: Pair, tmp_path: Path) -> None:
    der = tmp_path / "certificate.der"
    run(["openssl", "x509", "-in", acme.certificate, "-outform", "DER", "-out", der], timeout=10)
    sign_module(module, acme.key, der)

    verify_module(module, der)
    verify_module(module, acme.certificate)
    assert read_certificate(der).digest == read_certificate(acme.certificate).digest
    assert read_certificate(der).digest == hashlib.sha256(der.read_bytes()).hexdigest()


@pytest.mark.slow
def test_key_and_certificate_in_one_file_work(module: Path, acme: Pair, tmp_path: Path) -> None:
    both = tmp_path / "signing_key.pem"
    both.write_bytes(acme.key.read_bytes() + acme.certificate.read_bytes())
    both.chmod(0o600)
    sign_module(module, both, both)

    verify_module(module, both)


def test_elliptic_keys_sign_too(module: Path, tmp_path: Path) -> None:
    pair = Pair(tmp_path / "ec.key", tmp_path / "ec.pem")
    run(
        ["openssl", "req", "-x509", "-nodes", "-batch", "-newkey", "ec",
         "-pkeyopt", "ec_paramgen_curve:P-384", "-subj", "/CN=EC",
         "-keyout", pair.key, "-out", pair.certificate],
        timeout=60,
    )  # fmt: skip
    sign_module(module, pair.key, pair.certificate, "sha384")

    verify_module(module, pair.certificate)


def test_certificate_says_its_names_and_ids(acme: Pair) -> None:
    certificate = read_certificate(acme.certificate)

    assert certificate.subject == certificate.issuer == "Acme module key"
    shown = run(
        ["openssl", "x509", "-in", acme.certificate, "-noout", "-serial", "-ext",
         "subjectKeyIdentifier"],
        timeout=10,
    ).output.lower().replace(":", "")  # fmt: skip
    assert certificate.serial.lstrip("0") in shown
    assert certificate.subject_key_id in shown
    assert certificate.keyring_id == certificate.subject_key_id


# --- what is wrong ----------------------------------------------------------------------------


def test_unsigned_module_does_not_verify(module: Path, acme: Pair) -> None:
    with pytest.raises(SigningError, match=r"not signed; expected a signature by Acme module key"):
        verify_module(module, acme.certificate)


@pytest.mark.slow
def test_signature_by_another_key_names_both(module: Path, acme: Pair, other: Pair) -> None:
    sign_module(module, other.key, other.certificate)

    with pytest.raises(SigningError, match=r"signed by Other key \(key id .*expected Acme module"):
        verify_module(module, acme.certificate)


@pytest.mark.slow
def test_forged_certificate_with_the_same_names_does_not_verify(
    module: Path, acme: Pair, tmp_path: Path
) -> None:
    serial = "0x" + read_certificate(acme.certificate).serial
    forged = make_pair(tmp_path, "Acme module key", "-set_serial", serial)
    sign_module(module, forged.key, forged.certificate)

    with pytest.raises(SigningError, match="its signature by Acme module key is wrong"):
        verify_module(module, acme.certificate)


def test_copy_of_a_module_is_where_what_killed_processes_left_is_removed(
    module: Path, acme: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_module(module, acme.key, acme.certificate)
    copies: list[str] = []

    def looking(content: Path, *_: object) -> None:
        copies.append(content.parent.name)

    monkeypatch.setattr("nodeside.driver.module.signing._verify_message", looking)
    verify_module(module, acme.certificate)

    assert [copy.startswith("nodeside-scratch-signing-") for copy in copies] == [True]


@pytest.mark.parametrize("place", [100, 5000])
def test_changed_module_does_not_verify(module: Path, acme: Pair, place: int) -> None:
    sign_module(module, acme.key, acme.certificate)
    data = bytearray(module.read_bytes())
    data[place] ^= 1
    module.write_bytes(data)

    with pytest.raises(SigningError, match="the module was changed after it was signed"):
        verify_module(module, acme.certificate)


def test_key_of_another_certificate_is_refused(module: Path, acme: Pair, other: Pair) -> None:
    with pytest.raises(SigningError, match=r"other.*does not belong to the certificate .*Acme"):
        sign_module(module, other.key, acme.certificate)
    assert module.read_bytes() == SPECIMEN.read_bytes()


@pytest.mark.parametrize("traditional", [False, True])
def test_encrypted_key_is_said_to_be_encrypted(
    module: Path, acme: Pair, tmp_path: Path, traditional: bool
) -> None:
    locked = tmp_path / "locked.key"
    argv = ["openssl", "rsa" if traditional else "pkey", "-aes256", "-passout", "pass:secret"]
    argv += ["-traditional"] if traditional else []
    run([*argv, "-in", acme.key, "-out", locked], timeout=10)

    with pytest.raises(SigningError, match=r"locked.key is encrypted; nodeside needs") as info:
        sign_module(module, locked, acme.certificate)
    assert info.value.hint.startswith("openssl pkey -in ")


def test_missing_key_and_certificate_are_named(module: Path, acme: Pair, tmp_path: Path) -> None:
    with pytest.raises(SigningError, match=r"cannot read the key .*no.key: No such file"):
        sign_module(module, tmp_path / "no.key", acme.certificate)
    with pytest.raises(SigningError, match=r"cannot read the certificate .*no.pem: No such file"):
        sign_module(module, acme.key, tmp_path / "no.pem")


def test_files_that_are_neither_key_nor_certificate(
    module: Path, acme: Pair, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("hello")
    with pytest.raises(SigningError, match=r"wrong: expected a private key in PEM"):
        sign_module(module, wrong, acme.certificate)
    with pytest.raises(SigningError, match=r"wrong: expected an X.509 certificate in PEM or DER"):
        sign_module(module, acme.key, wrong)
    with pytest.raises(SigningError, match=r"the PEM file has no CERTIFICATE block"):
        sign_module(module, acme.key, acme.key)


def test_unknown_hash_lists_the_known_ones(module: Path, acme: Pair) -> None:
    with pytest.raises(SigningError, match="unknown hash 'crc32': expected one of sha1, sha224,"):
        sign_module(module, acme.key, acme.certificate, "crc32")


def test_key_that_everybody_may_read_is_warned_about(
    module: Path, acme: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_key = tmp_path / "open.key"
    shutil.copy(acme.key, open_key)
    open_key.chmod(0o644)
    with caplog.at_level(logging.WARNING, "nodeside"):
        sign_module(module, open_key, acme.certificate)

    assert "every user can read the signing key" in caplog.text


def test_missing_openssl_says_what_to_install(
    module: Path, acme: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="cannot start openssl") as info:
        sign_module(module, acme.key, acme.certificate)
    assert info.value.hint == "install openssl in the driver image: apt-get install openssl"


def test_compressed_module_is_not_signed(tmp_path: Path, acme: Pair) -> None:
    import gzip

    path = tmp_path / "specimen.ko.gz"
    path.write_bytes(gzip.compress(SPECIMEN.read_bytes()))

    with pytest.raises(NotAModule, match="not a plain kernel module") as info:
        sign_module(path, acme.key, acme.certificate)
    assert "decompress it first" in info.value.hint


# --- hostile signatures -----------------------------------------------------------------------


def appended(message: bytes, id_type: int = 2, size: int | None = None) -> bytes:
    trailer = TRAILER.pack(0, 0, id_type, 0, 0, len(message) if size is None else size)
    return b"\x7fELF" + message + trailer + MARKER


def test_signature_of_impossible_size_is_refused() -> None:
    with pytest.raises(NotAModule, match="damaged signature: it claims 4000000000 bytes"):
        read_signature(appended(b"", size=4_000_000_000))
    with pytest.raises(NotAModule, match="damaged signature: it claims 0 bytes"):
        read_signature(appended(b""))


def test_endless_signatures_are_a_mistake_of_the_file(module: Path, acme: Pair) -> None:
    for _ in range(9):
        module.write_bytes(module.read_bytes() + appended(b"x").removeprefix(b"\x7fELF"))
    with pytest.raises(NotAModule, match="more than 8 consecutive signatures"):
        sign_module(module, acme.key, acme.certificate)


def test_message_that_nobody_understands_names_no_signer() -> None:
    assert read_signature(appended(b"not DER at all")) == Signature()
    assert read_signature(appended(bytes.fromhex("30060600a0023000"))) == Signature()  # no signer


def test_bare_data_is_not_signed() -> None:
    assert read_signature(b"") is None
    assert read_signature(MARKER) is None
    assert read_signature(b"\x7fELF" + bytes(1000)) is None


@pytest.fixture(scope="module")
def message(acme: Pair, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = Path(shutil.copy(SPECIMEN, tmp_path_factory.mktemp("fuzz") / "specimen.ko"))
    sign_module(path, acme.key, acme.certificate)
    data = path.read_bytes()
    return data[len(SPECIMEN.read_bytes()) : -len(MARKER) - TRAILER.size]


@given(st.data())
def test_damaged_message_is_survived(message: bytes, data: st.DataObject) -> None:
    damaged = bytearray(message)
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, 170), st.integers(0, 255)), min_size=1, max_size=6)
    ):
        damaged[place] = value
    found = describe_signature(AppendedSignature(0, 2, bytes(damaged)))

    assert isinstance(found, Signature)


@given(st.binary(max_size=300))
def test_any_file_is_refused_as_a_certificate(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.pem"
    path.write_bytes(data)

    with pytest.raises(SigningError, match=r"random\.pem"):
        read_certificate(path)


# --- the kernel's hash ------------------------------------------------------------------------


def test_hash_is_that_of_the_kernels_configuration(tmp_path: Path) -> None:
    config = tmp_path / "boot/config-6.1.0"
    config.parent.mkdir()
    config.write_text('CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_HASH="sha384"\n')

    assert kernel_hash(Host(tmp_path), "6.1.0") == "sha384"


def test_hash_is_that_of_an_in_tree_module_where_there_is_no_configuration(
    tmp_path: Path, acme: Pair
) -> None:
    tree = tmp_path / "lib/modules/6.1.0/kernel"
    tree.mkdir(parents=True)
    sign_module(Path(shutil.copy(SPECIMEN, tree / "a.ko")), acme.key, acme.certificate, "sha512")

    assert kernel_hash(Host(tmp_path), "6.1.0") == "sha512"


def test_hash_is_sha256_where_nothing_is_known(tmp_path: Path) -> None:
    assert kernel_hash(Host(tmp_path), "6.1.0") == "sha256"
