"""Values of module parameters: what the kernel takes and what it refuses."""

from __future__ import annotations

import pytest

from nodeside.driver.module.parameters import expected_instead


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("bool", "Y"), ("bool", "0"), ("bool", "on"), ("bool", "off"), ("invbool", "n"),
        ("bint", "1"), ("int", "-5"), ("int", "0x10"), ("int", "+7"), ("int", "0777"),
        ("uint", "4294967295"), ("byte", "255"), ("short", "-32768"), ("ushort", "65535"),
        ("ulong", "18446744073709551615"), ("long", "-9223372036854775808"), ("hexint", "0xff"),
        ("ullong", "18446744073709551615"), ("charp", "any, thing"), ("string", ""),
        ("array of int", "1,2,3"), ("array of charp", "a,b"), ("", "x"), ("unheard of", "x"),
    ],
)  # fmt: skip
def test_value_that_the_kernel_takes(type: str, value: str) -> None:
    assert expected_instead(type, value) == ""


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        ("bool", "maybe", "a boolean (y, n, 1, 0, on or off)"),
        ("bool", "", "a boolean (y, n, 1, 0, on or off)"),
        ("byte", "256", "an integer 0 to 255"),
        ("uint", "-1", "an integer 0 to 4294967295"),
        ("int", "089", "an integer -2147483648 to 2147483647"),
        ("int", "1_000", "an integer -2147483648 to 2147483647"),
        ("int", "", "an integer -2147483648 to 2147483647"),
        ("short", "9" * 5000, "an integer -32768 to 32767"),
        ("array of byte", "1,300", "a list separated by commas, each an integer 0 to 255"),
        ("charp", "x" * 1025, "a string of at most 1024 bytes"),
    ],
)
def test_value_that_the_kernel_refuses(type: str, value: str, expected: str) -> None:
    assert expected_instead(type, value) == expected


def test_long_is_as_wide_as_the_machine() -> None:
    assert expected_instead("long", str(1 << 40), elf_class=64) == ""
    assert "2147483647" in expected_instead("long", str(1 << 40), elf_class=32)
