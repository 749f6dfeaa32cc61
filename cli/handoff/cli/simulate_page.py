"""A simulated run as one HTML page without scripts or outside files: distributions, load over time, workers, requests.

Colours follow the reader's light or dark preference; figures are SVG that scales with the page.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from handoff.cli.simulate_view import COLUMNS, FIGURES
from handoff.engines.run_chart import LoadSample, RunChart, WorkerLane
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.simulation import Simulation

_WIDTH, _HEIGHT = 720, 180
_LEFT, _BOTTOM, _TOP = 56, 24, 10
_BARS = 48

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5d6b79; --line: #d9dfe5; --page: #fbfcfd; --card: #ffffff;
  --one: #2563a8; --two: #c2611f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #93a1af; --line: #2d3843; --page: #12171c;
  --card: #1a2128; --one: #6aa9ea; --two: #eb9a5c; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 1560px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1rem; margin: 0 0 .5rem; }
p { margin: 0 0 1rem; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .75rem 1rem; }
.tile b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: .75rem; }
section.wide { grid-column: 1 / -1; } .scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg.lanes { min-width: 720px; }
.axis { stroke: var(--line); } .one { fill: var(--one); } .two { fill: var(--two); }
.line1, .line2 { fill: none; stroke-width: 1.5; } .line1 { stroke: var(--one); } .line2 { stroke: var(--two); }
.key1 { color: var(--one); } .key2 { color: var(--two); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .85rem; }
th { color: var(--soft); font-weight: 500; } th, td { text-align: right; padding: .2rem .6rem; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } tr + tr td { border-top: 1px solid var(--line); }
td.text { text-align: left; white-space: normal; } .bad { color: var(--bad); }
.note { border-left: 4px solid var(--two); padding-left: .75rem; color: var(--ink); }
"""


def simulate_page(simulation: Simulation) -> str:
    """The whole page."""
    report, chart = simulation.report, simulation.chart
    assert chart is not None
    notes = []
    if simulation.interrupted:
        notes.append("The run was interrupted: everything here is of what was done until then.")
    if simulation.capped:
        notes.append("The run was stopped at max_sim_time_ms.")
    samples = chart.samples
    sections = [
        _section("Latencies", _latency_table(simulation), wide=True),
        _section("Time to first token", _histogram([request_ms / 1000.0 for request_ms in chart.ttft_ms], "one")),
        _section("Whole request", _histogram([request_ms / 1000.0 for request_ms in chart.e2e_ms], "two")),
        _section("Requests in flight", _series(samples, lambda sample: (sample.in_flight, None)), wide=True),
        _section(
            "Waiting in engines" + _key("prefill", "decode"),
            _series(samples, lambda sample: (sample.prefill_waiting, sample.decode_waiting)),
        ),
        _section(
            "Blocks in use" + _key("prefill", "decode"),
            _series(samples, lambda sample: (sample.prefill_usage, sample.decode_usage), percent=True),
        ),
        _section("Workers: requests at work", _lanes(chart), wide=True),
        _section("Slowest requests", _requests(chart.slowest()), wide=True),
    ]
    if chart.failed:
        title = f"Requests that did not complete ({chart.num_failed:,})"
        sections.append(_section(title, _requests(chart.failed, failures=True), wide=True))
    note = "".join(f'<p class="note">{escape(text)}</p>' for text in notes)
    name = escape(str(report["scenario"]))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>"
        f"<p>{report['completed_requests']:,} of {report['num_requests']:,} requests completed in "
        f"{report['duration_ms'] / 1000.0:,.3f} s of virtual time; seed {report['seed']}.</p>{note}"
        f'<div class="tiles">{_tiles(simulation)}</div><main>{"".join(sections)}</main></body></html>\n'
    )


def _section(title: str, content: str, *, wide: bool = False) -> str:
    return f'<section{" class=wide" if wide else ""}><h2>{title}</h2><div class="scroll">{content}</div></section>'


def _key(one: str, two: str) -> str:
    return f' <small>(<span class="key1">{one}</span>, <span class="key2">{two}</span>)</small>'


def _tiles(simulation: Simulation) -> str:
    report = simulation.report
    tiles = [
        (f"{report['request_throughput_rps']:,.2f}", "requests/s"),
        (f"{report['output_throughput_tok_s']:,.0f}", "output tokens/s"),
        (f"{report['median_ttft_ms'] / 1000.0:,.3f} s", "median first token"),
        (f"{report['p95_ttft_ms'] / 1000.0:,.3f} s", "p95 first token"),
        (f"{report['median_itl_ms']:,.2f} ms", "median between tokens"),
        (f"{report['prefix_cache_reused_ratio']:.1%}", "of input cached"),
        (f"{report['gpu_hours']:,.2f}", "GPU hours"),
    ]
    return "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles)


def _latency_table(simulation: Simulation) -> str:
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows = "".join(
        f"<tr><td>{name}</td>"
        + "".join(f"<td>{simulation.report[f'{column}_{figure}']:,.3f}</td>" for column in COLUMNS)
        + "</tr>"
        for figure, name in FIGURES.items()
    )
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _histogram(seconds: Sequence[float], colour: str) -> str:
    """Counts over logarithmic buckets; the axis is in seconds."""
    positive = sorted(value for value in seconds if value > 0.0)
    if not positive:
        return "<p>no completed request</p>"
    low, high = math.log10(positive[0]), math.log10(positive[-1])
    span = max(high - low, 1e-9)
    counts = [0] * _BARS
    for value in positive:
        counts[min(_BARS - 1, int((math.log10(value) - low) / span * _BARS))] += 1
    most = max(counts)
    width = (_WIDTH - _LEFT) / _BARS
    bars = "".join(
        f'<rect class="{colour}" x="{_LEFT + index * width:.1f}" y="{_y(count / most):.1f}" '
        f'width="{width - 1:.1f}" height="{_HEIGHT - _BOTTOM - _y(count / most):.1f}"/>'
        for index, count in enumerate(counts)
        if count
    )
    labels = "".join(
        _label(_LEFT + share * (_WIDTH - _LEFT), f"{10 ** (low + share * span):.3g} s", share)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return _figure(bars + labels + _scale(f"{most:,}"))


def _series(
    samples: Sequence[LoadSample],
    values: Callable[[LoadSample], tuple[float, float | None]],
    *,
    percent: bool = False,
) -> str:
    """One or two lines over time."""
    if len(samples) < 2:
        return "<p>the run was too short to be sampled</p>"
    pairs = [values(sample) for sample in samples]
    most = max(1e-9 if percent else 1.0, *(value for pair in pairs for value in pair if value is not None))
    start, end = samples[0].at_ms, samples[-1].at_ms
    span = max(end - start, 1e-9)
    lines = []
    for which, style in ((0, "line1"), (1, "line2")):
        points = [
            f"{_LEFT + (sample.at_ms - start) / span * (_WIDTH - _LEFT):.1f},{_y(value / most):.1f}"
            for sample, pair in zip(samples, pairs, strict=True)
            if (value := pair[which]) is not None
        ]
        if points:
            lines.append(f'<polyline class="{style}" points="{" ".join(points)}"/>')
    return _figure("".join(lines) + _times(start, end) + _scale(f"{most:.1%}" if percent else f"{most:,.0f}"))


def _lanes(chart: RunChart) -> str:
    """A row for each worker, shaded by how many requests it worked on at once."""
    lanes = sorted(chart.lanes.values(), key=lambda lane: (lane.pool != "prefill", lane.worker))
    if not lanes:
        return "<p>no worker had work</p>"
    buckets = max(len(lane.busy_ms) for lane in lanes)
    row, left = 16, 84
    width = (_WIDTH * 2 - left) / buckets
    most: dict[str, float] = {}
    for lane in lanes:
        most[lane.pool] = max(most.get(lane.pool, 0.0), *lane.busy_ms)
    parts = []
    for index, lane in enumerate(lanes):
        top = index * row
        parts.append(f'<text x="0" y="{top + 11}">{lane.pool} {lane.worker}</text>')
        parts.extend(_lane_cells(lane, top, left, width, most[lane.pool] or 1.0))
    height = len(lanes) * row
    end_s = buckets * chart.bucket_ms / 1000.0
    axis = "".join(
        f'<text x="{left + share * (_WIDTH * 2 - left):.0f}" y="{height + 14}" '
        f'text-anchor="{_anchor(share)}">{share * end_s:,.0f} s</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return f'<svg class="lanes" viewBox="0 0 {_WIDTH * 2} {height + 20}" role="img">{"".join(parts)}{axis}</svg>'


def _lane_cells(lane: WorkerLane, top: int, left: int, width: float, most: float) -> list[str]:
    colour = "one" if lane.pool == "prefill" else "two"
    return [
        f'<rect class="{colour}" x="{left + bucket * width:.1f}" y="{top + 1}" width="{width + 0.2:.1f}" height="13" '
        f'fill-opacity="{0.12 + 0.88 * busy_ms / most:.2f}"/>'
        for bucket, busy_ms in enumerate(lane.busy_ms)
        if busy_ms > 0.0
    ]


def _requests(requests: Sequence[SimulatedRequest], *, failures: bool = False) -> str:
    columns = ["arrived s", "input", "output", "prefill", "decode", "first token s", "transferred s", "took s"]
    head = "".join(f"<th>{column}</th>" for column in columns)
    rows = []
    for request in requests:
        held, activated, last = request.held_ms, request.activated_ms, request.last_token_ms
        cells = [
            _seconds(request.arrival_ms),
            f"{request.input_tokens:,}",
            f"{request.output_tokens:,}",
            _text(request.prefill_worker),
            _text(request.decode_worker),
            _seconds(None if request.first_token_ms is None else request.first_token_ms - request.arrival_ms),
            _seconds(None if held is None or activated is None else activated - held),
            _seconds(None if last is None else last - request.arrival_ms),
        ]
        why = ""
        if failures:
            reason = f": {request.failure}" if request.failure else ""
            why = f'<td class="text bad">{escape(f"{request.status}{reason}")}</td>'
        rows.append(
            f"<tr><td>{escape(request.request_id)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + why + "</tr>"
        )
    last_head = '<th class="text">how it ended</th>' if failures else ""
    return f"<table><tr><th>request</th>{head}{last_head}</tr>{''.join(rows)}</table>"


def _figure(content: str) -> str:
    base = _HEIGHT - _BOTTOM
    axis = f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH}" y2="{base}"/>'
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{axis}{content}</svg>'


def _y(share: float) -> float:
    return _TOP + (1.0 - share) * (_HEIGHT - _BOTTOM - _TOP)


def _scale(most: str) -> str:
    return (
        f'<text x="{_LEFT - 6}" y="{_y(1.0) + 4:.1f}" text-anchor="end">{most}</text>'
        f'<text x="{_LEFT - 6}" y="{_y(0.0) + 4:.1f}" text-anchor="end">0</text>'
    )


def _times(start_ms: float, end_ms: float) -> str:
    return "".join(
        _label(_LEFT + share * (_WIDTH - _LEFT), f"{(start_ms + share * (end_ms - start_ms)) / 1000.0:,.1f} s", share)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )


def _label(x: float, text: str, share: float) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{_anchor(share)}">{text}</text>'


def _anchor(share: float) -> str:
    return "start" if share == 0.0 else "end" if share == 1.0 else "middle"


def _seconds(value_ms: float | None) -> str:
    return "" if value_ms is None else f"{value_ms / 1000.0:,.3f}"


def _text(value: object) -> str:
    return "" if value is None else str(value)
