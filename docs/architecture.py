"""The picture of the house: `python docs/architecture.py` draws docs/architecture.svg anew.

`FLOORS` says which rooms stand on which floor. `tests/test_layers.py` holds the imports to it:
a room knows its own floor and those below.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).parent / "architecture.svg"


class Room(NamedTuple):
    """Packages that stand together in the picture.

    Attributes:
        name: Folders below ``src/fedaudit``.
        says: What is found there, a line each.
        wing: The column that it begins in: 0 the federation, 1 the adversary, 2 figures and
            readers.
        wide: Columns that it takes.
        high: Floors that it takes, its own the highest of them.
        step: Its place on the way of the data; 0 beside it.
    """

    name: str
    says: tuple[str, ...]
    wing: int
    wide: int = 1
    high: int = 1
    step: int = 0


FLOORS: tuple[tuple[Room, ...], ...] = (
    (
        Room(
            "cli, catalogue", ("commands of the terminal, and what there is to name in them",), 0, 2
        ),
        Room("integrations", ("Flower, NVFlare",), 2),
    ),
    (
        Room(
            "study, games",
            ("runs a plan, and writes its record",),
            0,
            2,
        ),
        Room(
            "live, gate, pack, filters",
            ("a recorder for other people's loops;", "a policy's verdict; evidence; check-dp"),
            2,
        ),
    ),
    (
        Room(
            "plan, extensions",
            ("settings, checked, and the parts of a run;", "canaries, unlearning, shadows ..."),
            0,
            2,
            step=1,
        ),
        Room("evaluation", ("figures and controls from", "measurements and the truth"), 2),
    ),
    (
        Room(
            "fl, defenses",
            (
                "FedAvg, FedMD, IFCA-MIR ...;",
                "local training, simulate",
                "",
                "hooks that a client trains through:",
                "CoFedMID, DP-SGD, BitRand ...",
            ),
            0,
            high=2,
            step=2,
        ),
        Room(
            "attacks, risk", ("FedMIA and rivals, SIA, AMI;", "IFCA-MIR's shadow models"), 1, step=5
        ),
        Room("report", ("a page that opens offline,", "the terminal's lines"), 2, step=8),
    ),
    (
        Room("signals", ("loss, cosine, norm ... of every", "round, client and sample"), 1, step=4),
        Room("results", ("one Estimate, one Record,", "over seeds, compared"), 2, step=7),
    ),
    (
        Room(
            "datasets, models, engines",
            ("readers, partitions, draws; networks;", "processes and machines"),
            0,
        ),
        Room("observe", ("views by deletion; rounds and", "measurements on disk"), 1, step=3),
        Room("metrics", ("AUC, TPR at a rate, epsilon:", "arrays in, limits out"), 2, step=6),
    ),
    (Room("core", ("samples, parameters, refusals, seeds, files, progress",), 0, 3),),
)
"""From the roof to the ground."""

WINGS = ("a federation", "what an adversary sees and does", "figures and readers")
COLOURS = ("#dbeafe", "#fde8d7", "#dcf2e3")
BOTH = "#eef0f3"
INK, QUIET, LINE = "#1f2937", "#52606d", "#9aa5b1"
WIDTH, GAP, EDGE, TOP = 300, 16, 20, 44


def drawn() -> str:
    """The picture, as SVG."""
    wide = 2 * EDGE + 3 * WIDTH + 2 * GAP
    tops = [TOP]
    for rooms in FLOORS:
        tops.append(tops[-1] + _height(rooms) + GAP)
    high = tops[-1] - GAP + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        'font-family="system-ui, sans-serif">',
        "<title>The rooms of fedaudit, floor by floor, and the way of the data</title>",
        f'<rect width="{wide}" height="{high}" rx="10" fill="#fff"/>',
    ]
    for at, wing in enumerate(WINGS):
        x = EDGE + at * (WIDTH + GAP) + WIDTH / 2
        parts.append(_text(x, 28, wing, size=15, colour=QUIET, middle=True))
    for floor, rooms in enumerate(FLOORS):
        for room in rooms:
            parts += _box(room, tops[floor], tops[floor + room.high] - GAP, above=floor < 3)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _height(rooms: tuple[Room, ...]) -> int:
    return 52 + 20 * max(len(room.says) for room in rooms if room.high == 1)


def _box(room: Room, y: float, end: float, *, above: bool) -> Iterator[str]:
    x, wide = EDGE + room.wing * (WIDTH + GAP), room.wide * (WIDTH + GAP) - GAP
    fill = BOTH if above or room.wide > 1 else COLOURS[room.wing]
    yield (
        f'<rect x="{x}" y="{y}" width="{wide}" height="{end - y}" rx="8" fill="{fill}" '
        f'stroke="{LINE}"/>'
    )
    yield _text(x + 16, y + 30, room.name, size=17, colour=INK, mono=True)
    for line, said in enumerate(room.says):
        yield _text(x + 16, y + 54 + 20 * line, said, size=14, colour=QUIET)
    if room.step:
        yield f'<circle cx="{x + wide - 24}" cy="{y + 24}" r="14" fill="{INK}"/>'
        yield _text(x + wide - 24, y + 29, str(room.step), size=14, colour="#fff", middle=True)


def _text(
    x: float,
    y: float,
    said: str,
    *,
    size: int,
    colour: str,
    middle: bool = False,
    mono: bool = False,
) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    face = ' font-family="ui-monospace, monospace" font-weight="600"' if mono else ""
    where = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"'
    return f"<text {where}{anchor}{face}>{escape(said)}</text>"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
