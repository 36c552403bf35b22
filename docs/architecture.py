"""Diagram of the packages: `python docs/architecture.py` regenerates docs/architecture.svg.

`LAYERS` lists the packages of each layer. A package imports from its own layer and from lower ones,
which `tests/test_architecture.py` checks.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).parent / "architecture.svg"


class Box(NamedTuple):
    """Packages in one box of the diagram."""

    # Folders below ``src/fedaudit``.
    name: str
    # Description of the packages.
    lines: tuple[str, ...]
    # Column in which the box begins: 0 for the federation, 1 for the adversary, 2 for metrics and
    # reports.
    column: int
    # Number of columns that the box covers.
    n_columns: int = 1
    # Number of layers that the box covers, from its own one down.
    n_layers: int = 1
    # Number of the box in the data flow; 0 if it is not part of it.
    step: int = 0


LAYERS: tuple[tuple[Box, ...], ...] = (
    (
        Box("cli, api, catalogue", ("command line, Python interface, and their names",), 0, 2),
        Box("integrations, watch, benchmark", ("Flower, NVFlare; live pages; scores",), 2),
    ),
    (
        Box(
            "study, games",
            ("runs a plan and writes its record",),
            0,
            2,
        ),
        Box(
            "live, guard, gate, pack, exports, filters, privacy_budget, sinks",
            (
                "recorder and guard of training loops;",
                "gate; packs, exports; check-dp; budget; sinks",
            ),
            2,
        ),
    ),
    (
        Box(
            "plan, extensions",
            ("validated settings and the parts of a run;", "canaries, unlearning, shadows ..."),
            0,
            2,
            step=1,
        ),
        Box("evaluation", ("estimates and controls from", "signals and true membership"), 2),
    ),
    (
        Box(
            "fl, defenses",
            (
                "FedAvg, FedMD, IFCA-MIR ...;",
                "local training, simulate",
                "",
                "defenses with hooks into training:",
                "CoFedMID, DP-SGD, BitRand ...",
            ),
            0,
            n_layers=2,
            step=2,
        ),
        Box(
            "attacks, risk",
            ("FedMIA and other attacks, SIA, AMI;", "IFCA-MIR shadow models"),
            1,
            step=5,
        ),
        Box(
            "report, summary, formatting", ("offline HTML pages and", "terminal output"), 2, step=8
        ),
    ),
    (
        Box("signals", ("loss, cosine, norm ... of every", "round, client and sample"), 1, step=4),
        Box("results", ("estimates and records,", "means over seeds, comparison"), 2, step=7),
    ),
    (
        Box(
            "datasets, models, engines",
            ("data, partitions, draws; networks;", "parallel execution"),
            0,
        ),
        Box("observe", ("threat-model views; stored rounds", "and signals"), 1, step=3),
        Box("metrics", ("AUC, TPR at fixed FPR, epsilon,", "with confidence limits"), 2, step=6),
    ),
    (Box("core", ("samples, parameters, errors, seeds, files, progress",), 0, 3),),
)
"""Layers from top to bottom."""

COLUMNS = ("federation", "adversary", "metrics and reports")
COLOURS = ("#dbeafe", "#fde8d7", "#dcf2e3")
NEUTRAL = "#eef0f3"
INK, QUIET, LINE = "#1f2937", "#52606d", "#9aa5b1"
WIDTH, GAP, EDGE, TOP = 300, 16, 20, 44


def diagram() -> str:
    wide = 2 * EDGE + 3 * WIDTH + 2 * GAP
    tops = [TOP]
    for boxes in LAYERS:
        tops.append(tops[-1] + _height(boxes) + GAP)
    high = tops[-1] - GAP + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        'font-family="system-ui, sans-serif">',
        "<title>Packages of fedaudit by layer, with the data flow</title>",
        f'<rect width="{wide}" height="{high}" rx="10" fill="#fff"/>',
    ]
    for number, title in enumerate(COLUMNS):
        x = EDGE + number * (WIDTH + GAP) + WIDTH / 2
        parts.append(_text(x, 28, title, size=15, colour=QUIET, middle=True))
    for layer, boxes in enumerate(LAYERS):
        for box in boxes:
            bottom = tops[layer + box.n_layers] - GAP
            parts += _box(box, tops[layer], bottom, is_neutral=layer < 3)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _height(boxes: tuple[Box, ...]) -> int:
    return 52 + 20 * max(len(box.lines) for box in boxes if box.n_layers == 1)


def _box(box: Box, y: float, end: float, *, is_neutral: bool) -> Iterator[str]:
    x, width = EDGE + box.column * (WIDTH + GAP), box.n_columns * (WIDTH + GAP) - GAP
    fill = NEUTRAL if is_neutral or box.n_columns > 1 else COLOURS[box.column]
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{end - y}" rx="8" fill="{fill}" '
        f'stroke="{LINE}"/>'
    )
    yield _text(x + 16, y + 30, box.name, size=17, colour=INK, mono=True)
    for number, line in enumerate(box.lines):
        yield _text(x + 16, y + 54 + 20 * number, line, size=14, colour=QUIET)
    if box.step:
        yield f'<circle cx="{x + width - 24}" cy="{y + 24}" r="14" fill="{INK}"/>'
        yield _text(x + width - 24, y + 29, str(box.step), size=14, colour="#fff", middle=True)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    colour: str,
    middle: bool = False,
    mono: bool = False,
) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    face = ' font-family="ui-monospace, monospace" font-weight="600"' if mono else ""
    where = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"'
    return f"<text {where}{anchor}{face}>{escape(text)}</text>"


if __name__ == "__main__":
    PICTURE.write_text(diagram(), encoding="utf-8")
