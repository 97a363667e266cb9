"""PCI ids, as several sections of driver.yaml have them. See model.py."""

from __future__ import annotations

from nodeside.spec import patterns
from nodeside.spec.schema import item, section


@section
class PciId:
    """A PCI device by its ids, as `lspci -n` prints them."""

    vendor: str = item("PCI vendor id, four lower-case hex digits.", pattern=patterns.HEX4)
    device: str = item(
        "PCI device id, four lower-case hex digits.",
        default="",
        default_words="every device of the vendor",
        pattern=patterns.HEX4,
    )
