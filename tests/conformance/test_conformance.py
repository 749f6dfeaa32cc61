"""The offline runtime gives the deployed simulator's numbers."""

import json
from pathlib import Path

import pytest
from conformance_case import compare_case, run_case

from handoff.engines.request_record import record_line

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"), key=lambda path: int(path.stem))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_request_and_figure_agrees(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare_case(json.loads(path.read_text()), tmp_path)
    with capsys.disabled():
        print(f" case {path.stem}: {comparison.largest_ms} ms, {comparison.largest_ratio:.1e} ", end="")
    assert comparison.mismatches == ()
    assert comparison.largest_ms <= 1e-6


def test_the_set_is_whole() -> None:
    assert len(CASES) == 62


@pytest.mark.parametrize("path", CASES[::4], ids=lambda path: path.stem)
def test_leaping_over_passes_changes_nothing(path: Path, tmp_path: Path) -> None:
    case = json.loads(path.read_text())
    leapt, stepped = (run_case(case, tmp_path, leaps=leaps)[1].requests for leaps in (True, False))
    assert list(map(record_line, leapt)) == list(map(record_line, stepped))
