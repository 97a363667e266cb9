"""trial.yaml: what it adds to a trial, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.errors import SpecError
from nodeside.trial.target.side_file import NO_ADDITIONS, host_access_message, read_side_file
from tests import TOP


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("device: [edu]", r"trial\.yaml:1: \$\.device: unknown field"),
        ("devices: edu", r'\$\.devices: expected a list of strings, got "edu"'),
        ("commands: [ls]", r'\$\.commands\[0\]: expected a list of strings, got "ls"'),
        ("commands: [[ls, 5]]", r"\$\.commands\[0\]\[1\]: expected a string, got 5"),
        ("commands: [[]]", r"\$\.commands\[0\]: expected a program"),
        ("commands: ls", r"\$\.commands: expected a list of argvs"),
        (f"commands: [{'[ls], ' * 65}]", r"\$\.commands: expected at most 64 commands, got 65"),
        ("[edu]", r"\$: expected a mapping"),
        ("devices: [", "not YAML"),
        ("devices: [edu]\ndevices: [edu]", "appears twice"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(SpecError, match=mistake):
        read_side_file(written(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_bytes(b"\xff\xfe\xfa")

    with pytest.raises(SpecError, match=r"trial\.yaml: not YAML"):
        read_side_file(tmp_path / "trial.yaml")


@pytest.mark.parametrize("text", ["", "# later\n", "---\n# later\n", "~"])
def test_a_file_without_content_adds_nothing(tmp_path: Path, text: str) -> None:
    assert read_side_file(written(tmp_path, text)) == NO_ADDITIONS


def test_aliases_that_multiply_are_refused_at_once(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    rows.append("devices: *a11")

    with pytest.raises(SpecError, match="expected at most"):
        read_side_file(written(tmp_path, "\n".join(rows)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("commands: [[&a {}, *a, *a]]", r"\$\.commands\[0\]"),
        ("devices: [&a 'edu,id={}', *a, *a]", r"\$\.devices"),
    ],
)
def test_an_alias_cannot_repeat_a_long_word(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SpecError, match=f"{place}: expected at most 8192 characters in all"):
        read_side_file(written(tmp_path, text.format("x" * 3000)))


def test_a_long_mistake_is_told_in_brief(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_side_file(written(tmp_path, f"devices: {'x' * 100_000}"))

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "device",
    [
        "edu",
        "edu,dma_mask=0xffffffff",
        "e1000,id=net1,bus=pci.0,addr=0x5,mac=52:54:00:12:34:56",
        "pci-testdev,multifunction=on,addr=07.0,membar=1M",
        "virtio-rng-pci,max-bytes=1024,period=1000,disable-legacy=auto",
        "virtio-balloon-pci,indirect_desc=off",
        "usb-tablet,usb_version=1",
        "nec-usb-xhci,id=usb",
        "i2c-ddc,xres=1024",
    ],
)
def test_devices_that_stay_in_the_machine_are_accepted(device: str) -> None:
    assert host_access_message(device) == ""


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("edu,some=text", 'the value of "some" is neither a number nor a switch'),
        ("edu,id=a/b", 'the value of "id" is neither a number nor a switch nor a plain word'),
    ],
)
def test_a_value_is_refused_with_what_it_may_be(device: str, words: str) -> None:
    assert host_access_message(device) == words


@pytest.mark.parametrize(
    "device",
    [
        "usb-tablet,pcap=/any/file",
        "usb-tablet,pcap=file",
        "usb-tablet,pcap=1",
        "usb-tablet,PCAP=1",
        "loader,file=/etc/shadow",
        "loader",
        "guest-loader,addr=0",
        "usb-mtp,rootdir=/",
        "edu,driver=loader",
        "edu,romfile=1",
        "e1000,netdev=0",
        "virtio-blk-pci,drive=node",
        "virtio-blk-pci,drive=1",
        "isa-debugcon,chardev=agent",
        "nvdimm,memdev=1",
        "usb-host,hostbus=1,hostaddr=1",
        "usb-host",
        "vfio-pci,host=00:02.0",
        "vfio-pci,sysfsdev=1",
        "vhost-vsock-pci,guest-cid=3",
        "virtio-9p-pci,fsdev=1,mount_tag=x",
        "virtio-input-host-pci,evdev=1",
        "ivshmem-plain",
        "u2f-passthru",
        "ccid-card-emulated",
        "x-pci-proxy-dev,fd=3",
        "edu,dma_mask",
        "edu,,dma_mask=1",
        "edu,id=a/b",
        "edu,some=text",
        '{"driver":"loader","file":"/etc/shadow"}',
        "",
    ],
)
def test_a_device_that_reaches_the_host_takes_a_person(tmp_path: Path, device: str) -> None:
    with pytest.raises(SpecError, match=r"\$\.devices\[0\]: .*command line: --device"):
        read_side_file(written(tmp_path, f"devices: ['{device}']"))


def test_the_example_is_accepted() -> None:
    assert read_side_file(TOP / "examples/edu/trial.yaml").devices == ("edu",)
