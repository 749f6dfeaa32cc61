"""The rules of the house that a tree can be checked for."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from handoff.engines.machines import MACHINES as TABLE

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ("journal", "engines", "cli")
MODULES = sorted(path for root in SOURCE_ROOTS for path in (ROOT / root / "handoff").rglob("*.py"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MACHINES = PYPROJECT["tool"]["handoff"]["machines"]["modules"]
DESCRIPTIONS = PYPROJECT["tool"]["handoff"]["machines"]["descriptions"]
MACHINE_IMPORTS = frozenset(PYPROJECT["tool"]["handoff"]["machines"]["may_import"])


def test_handoff_is_a_namespace_package() -> None:
    assert [path for root in SOURCE_ROOTS for path in (ROOT / root).glob("handoff/__init__.py")] == []


def test_every_package_is_typed() -> None:
    for package in ("journal/handoff/journal", "engines/handoff/engines", "cli/handoff/cli"):
        assert (ROOT / package / "py.typed").exists()


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
    return found


def module_path(module: str) -> Path:
    root = module.split(".")[1]
    return ROOT / root / (module.replace(".", "/") + ".py")


@pytest.mark.parametrize("module", MACHINES)
def test_machines_import_only_what_cannot_wait_or_guess(module: str) -> None:
    foreign = {name.split(".")[0] for name in imports_of(module_path(module))} - MACHINE_IMPORTS - {"handoff"}
    assert foreign == set()


@pytest.mark.parametrize("module", MACHINES)
def test_machines_import_only_modules_that_are_pure_themselves(module: str) -> None:
    ours = {name for name in imports_of(module_path(module)) if name.startswith("handoff.")}
    assert ours <= {*MACHINES, *DESCRIPTIONS}


def test_import_linter_watches_the_same_machines() -> None:
    (contract,) = [
        contract for contract in PYPROJECT["tool"]["importlinter"]["contracts"] if contract["type"] == "forbidden"
    ]
    assert contract["source_modules"] == MACHINES


def test_every_machine_that_replay_rebuilds_is_watched() -> None:
    rebuilt = {type_of(factory).__module__ for factory in TABLE.values()}
    assert rebuilt <= set(MACHINES)


def type_of(factory: object) -> type:
    owner = getattr(factory, "__self__", factory)
    assert isinstance(owner, type)
    return owner


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_begins_with_its_theory(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def tracked_text() -> list[tuple[str, str]]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    texts = []
    for name in filter(None, names):
        path = ROOT / name
        if path.is_file():
            content = path.read_bytes()
            if b"\0" not in content:
                texts.append((name, content.decode()))
    return texts


def test_no_package_index_and_no_machine_path_is_named() -> None:
    hosts = r"pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian\.org"
    forbidden = re.compile(rf"{hosts}|(?<![\w.])/(home|root|work)/[a-z.]")
    own = Path(__file__).name
    named = [name for name, text in tracked_text() if Path(name).name != own and forbidden.search(text)]
    assert named == []
