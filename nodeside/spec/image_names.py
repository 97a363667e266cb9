"""The grammar of image names, as regular expressions for every place that reads or checks one.

A pull spec is `[host[:port]/]path[:tag][@digest]`. This is the grammar of container runtimes, which
refuse anything else when they pull, long after it was written. A template may have placeholders
wherever a letter may be. https://pkg.go.dev/github.com/distribution/reference

Python, Go (in Kubernetes) and editors match these, as those of patterns.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeside.values import frozen

NAME_LIMIT: Final = 255  # characters of a name: host, port and path
TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST: Final = r"(sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})"
_SEPARATOR = r"([_.]|__|-+)"

# What is wrong with a name, and what to do about it. Upper case is wrong after the first slash,
# and everywhere if there is none; a tag and the word in a placeholder may have it.
_SCHEME = (r"^[A-Za-z][A-Za-z0-9+.-]*://", "write it without https:// or another scheme")
_LOWER = r"([^/:@{}]|\{[^{}]*\})"
_UPPER_CASE = (
    rf"^([^/@]*(/{_LOWER}+)*/{_LOWER}*[A-Z]|{_LOWER}*[A-Z][^/]*$)",
    "repository names are lower case",
)
# A port counts as one character here, so that a tag does not count: Go has no look-around.
_TOO_LONG = (
    r"^([^:@]|:[0-9]+/){256,}(:[^/@]*)?(@.*)?$",
    f"the name before the tag has at most {NAME_LIMIT} characters",
)
REMEDIES: Final = (_SCHEME, _UPPER_CASE, _TOO_LONG)


@frozen
class Grammar:
    """The parts of a name. `placeholders`, such as `{kernel}`, may stand for some letters."""

    placeholders: Sequence[str] = ()

    @property
    def host(self) -> str:
        """A domain name or an IPv6 address, with its port."""
        character, inside = (
            self._or_placeholder("[A-Za-z0-9]"),
            self._or_placeholder("[A-Za-z0-9-]"),
        )
        label = rf"{character}({inside}*{character})?"
        return rf"({label}(\.{label})*|\[[0-9a-fA-F:]+\])(:[0-9]{{1,5}})?"

    @property
    def path(self) -> str:
        """The name of a repository on a registry, in lower case."""
        word = rf"{self._or_placeholder('[a-z0-9]')}+"
        component = rf"{word}({_SEPARATOR}{word})*"
        return rf"{component}(/{component})*"

    @property
    def repository(self) -> str:
        return rf"({self.host}/)?{self.path}"

    @property
    def tag(self) -> str:
        if not self.placeholders:
            return TAG
        first, others = map(self._or_placeholder, ("[A-Za-z0-9_]", "[A-Za-z0-9_.-]"))
        return rf"{first}{others}{{0,127}}"

    @property
    def pull_spec(self) -> str:
        return rf"^{self.repository}(:{self.tag})?(@{DIGEST})?$"

    def _or_placeholder(self, characters: str) -> str:
        if not self.placeholders:
            return characters
        words = "|".join(each.strip("{}") for each in self.placeholders)
        return rf"({characters}|\{{({words})\}})"


PLAIN: Final = Grammar()
