"""The order in which the modules of one driver load: as they are listed, but what is needed first.

The lists of dkms.conf files have no order, since depmod makes one after the installation. Here the
modules say themselves what they need. Called for the manifest of a build and before every load.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeside.driver.module.modulefile import ModuleFile


def in_load_order(modules: Sequence[ModuleFile]) -> tuple[ModuleFile, ...]:
    """The modules as they are given, each after those of them that it depends on."""
    by_name = {module.name: module for module in modules}
    order: dict[str, ModuleFile] = {}
    for module in modules:
        _visit(module, by_name, order, ())
    return tuple(order.values())


def _visit(
    module: ModuleFile,
    by_name: dict[str, ModuleFile],
    order: dict[str, ModuleFile],
    above: tuple[str, ...],
) -> None:
    """Add what the module needs, then itself; a circle, which kbuild never makes, is cut."""
    if module.name in order or module.name in above:
        return
    for name in module.depends:
        if name in by_name:
            _visit(by_name[name], by_name, order, (*above, module.name))
    order[module.name] = module
