"""The order in which the modules of one driver load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nodeside.driver.module.load_order import in_load_order
from nodeside.driver.module.modulefile import ModuleFile


def module(name: str, *depends: str) -> ModuleFile:
    return ModuleFile(
        path=Path(f"/tmp/{name}.ko"),
        name=name,
        sha256="",
        size=1,
        depends=depends,
    )


def names(*modules: ModuleFile) -> list[str]:
    return [item.name for item in in_load_order(modules)]


def test_modules_that_need_nothing_of_each_other_stay_in_their_order() -> None:
    assert names(module("b"), module("a", "videodev"), module("c")) == ["b", "a", "c"]


def test_what_a_module_needs_comes_before_it_and_nothing_else_moves() -> None:
    given_order = (module("nat", "conntrack", "x_tables"), module("other"), module("conntrack"))
    assert names(*given_order) == ["conntrack", "nat", "other"]


def test_a_sibling_comes_before_the_module_that_was_linked_beside_a_stand_in_for_it() -> None:
    """Its `depends` names the stand-in; the kernel looks for the symbol."""
    consumer = replace(module("consumer", "standin"), imports={"frob_get": None, "printk": None})
    provider = replace(module("provider"), exports={"frob_get": None})

    assert names(consumer, provider) == ["provider", "consumer"]
    standin = replace(provider, name="standin")
    assert names(consumer, provider, standin) == ["standin", "provider", "consumer"]


def test_symbols_decide_where_depends_says_otherwise() -> None:
    """A sibling that happens to have the name of the stand-in needs the module itself."""
    consumer = replace(
        module("consumer", "standin"), imports={"frob_get": None}, exports={"use": None}
    )
    standin = replace(module("standin"), imports={"use": None})
    provider = replace(module("provider"), exports={"frob_get": None})

    assert names(standin, consumer, provider) == ["provider", "consumer", "standin"]
    assert names(consumer, standin, provider) == ["provider", "consumer", "standin"]


def test_soft_dependencies_order_siblings() -> None:
    first = replace(module("a"), softdeps=("pre: b-c absent post: d",))
    assert names(module("d"), first, module("b_c")) == ["b_c", "a", "d"]


def test_needs_of_needs_come_first() -> None:
    assert names(module("top", "middle"), module("middle", "base"), module("base")) == [
        "base",
        "middle",
        "top",
    ]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefgh"))))
def test_no_module_is_lost_and_circles_end(needs: dict[str, list[str]]) -> None:
    modules = [module(name, *depends) for name, depends in needs.items()]
    assert sorted(names(*modules)) == sorted(needs)


def test_a_chain_of_any_length_has_an_order() -> None:
    chain = [module(f"m{n}", f"m{n + 1}") for n in range(1500)]
    assert names(*chain) == [f"m{n}" for n in reversed(range(1500))]


def test_a_circle_of_any_length_ends() -> None:
    circle = [module(f"m{n}", f"m{(n + 1) % 1500}") for n in range(1500)]
    assert names(*circle) == [f"m{n}" for n in reversed(range(1500))]
