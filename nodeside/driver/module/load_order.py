"""The load order of a driver's modules: as listed, with dependencies first.

The module lists in dkms.conf files are unordered, since depmod computes the order after the
installation. This order comes from the `depends` field of the modules themselves. It is computed
for the manifest of a build and before every load.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeside.driver.module.modulefile import ModuleFile


def in_load_order(modules: Sequence[ModuleFile]) -> tuple[ModuleFile, ...]:
    """Return the modules in the given order, each after the ones that it depends on."""
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
    """Add the module after its dependencies. A cycle, which kbuild never produces, is broken."""
    if module.name in order or module.name in above:
        return
    for name in module.depends:
        if name in by_name:
            _visit(by_name[name], by_name, order, (*above, module.name))
    order[module.name] = module
