"""The kernel's command line, in the words that lib/cmdline.c would make of it."""

from __future__ import annotations

import pytest

from nodeside.driver.node.command_line import parse_command_line

BOOT = (
    "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-5.14.0-503.el9.x86_64 root=/dev/mapper/rl-root ro quiet "
    "console=ttyS0,115200n8 crashkernel=1G-4G:192M,4G-64G:256M"
)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("edu.timeout_ms=777", {"timeout_ms": "777"}),
        ("edu.timeout-ms=777", {"timeout_ms": "777"}),
        ("edu.timeout_ms=1 edu.timeout_ms=2", {"timeout_ms": "2"}),
        ('edu.colour="dark red" edu.a=1', {"colour": "dark red", "a": "1"}),
        ('"edu.colour=dark red" edu.a=1', {"colour": "dark red", "a": "1"}),
        ("edu.opts=a=b,c=d", {"opts": "a=b,c=d"}),
        ("edu.path=/lib/x.fw", {"path": "/lib/x.fw"}),
        ("edu.empty=", {"empty": ""}),
        ("edu.debug", {"debug": "y"}),
        ("edu.dyndbg edu.a=1", {"dyndbg": "+p", "a": "1"}),
        ('edu.dyndbg="file edu.c +p; func probe +p"', {"dyndbg": "file edu.c +p; func probe +p"}),
        ("edu.a=1 -- edu.b=2", {"a": "1"}),
        ("edu.=1 .a=1 edu a=1 edux.a=1", {}),
        ('edu.a="1', {"a": "1"}),
        ('edu.kept=in"n er"', {"kept": 'in"n er"'}),
    ],
)
def test_parameters_of_a_module(text: str, parameters: dict[str, str]) -> None:
    assert parse_command_line(f"{BOOT} {text}\n").parameters_of("edu") == parameters


QUOTES = "expected a value whose double quotes enclose all of its blanks, or none"
NAME = "expected a name of ASCII letters, digits and _"


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("edu.a:b=1", "a:b=1", NAME),
        ("edu.foo[0]=1", "foo[0]=1", NAME),
        ("edu.föö=1", "föö=1", NAME),
        ("edu.p/x=1", "p/x=1", NAME),
        ("edu.p/x", "p/x", NAME),
        ('"edu.x"=1', 'x"=1', NAME),
    ],
)
def test_what_no_module_can_be_given_is_left_out_and_told(text: str, words: str, why: str) -> None:
    line = parse_command_line(f"{BOOT} {text} edu.good=1")

    assert line.parameters_of("edu") == {"good": "1"}
    assert list(line.left_out_of("edu").values()) == [(words, why)]


def test_a_quote_that_is_not_closed_takes_the_rest_and_is_left_out() -> None:
    line = parse_command_line('edu.a=1 edu.a=in"n er edu.b=1')

    assert line.parameters_of("edu") == {}
    assert line.left_out_of("edu") == {"a": ('a=in"n er edu.b=1', QUOTES)}


def test_names_of_modules_may_have_either_dash() -> None:
    line = parse_command_line("snd-hda-intel.power_save=1 snd_hda_intel.model=generic")

    assert line.parameters_of("snd_hda_intel") == line.parameters_of("snd-hda-intel")
    assert line.parameters_of("snd-hda-intel") == {"power_save": "1", "model": "generic"}


def test_blacklist_of_the_kernel_is_the_last_one_and_that_of_modprobe_is_none() -> None:
    line = parse_command_line(
        "module_blacklist=old modprobe.blacklist=nouveau module-blacklist=pcspkr,edu_net,"
    )

    assert line.blacklist == {"pcspkr", "edu_net"}
    assert parse_command_line(BOOT).blacklist == frozenset()
