"""The few names that people import, each to be had whatever was imported before."""

import importlib
import pkgutil

import pytest

import handoff.engines
import handoff.journal

PACKAGES = {"handoff.journal": handoff.journal, "handoff.engines": handoff.engines}
NAMES = [(package, name) for package, module in PACKAGES.items() for name in module.__all__]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_is_there_and_explained(package: str, name: str) -> None:
    value = getattr(PACKAGES[package], name)
    assert value.__doc__
    if package == "handoff.journal" or name != "MACHINES":
        assert value.__module__.startswith(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_hidden_by_a_module(package: str) -> None:
    modules = {module.name for module in pkgutil.iter_modules(PACKAGES[package].__path__)}
    assert modules.isdisjoint(PACKAGES[package].__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_refused(package: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        importlib.import_module(package).nonsense  # noqa: B018
