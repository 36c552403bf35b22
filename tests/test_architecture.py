"""The picture of the rooms is what the source is."""

import re
import runpy
from pathlib import Path

from tests.test_layers import FILES, ours

DOCS = Path(__file__).parents[1] / "docs"
SRC = Path(__file__).parents[1] / "src" / "fedaudit"
SCRIPT = runpy.run_path(str(DOCS / "architecture.py"))
DOORS = {"algorithms", "partitions", "tasks", "views", "plots", "__main__"}
"""Modules that only show what rooms have."""


def test_the_picture_is_drawn_from_the_floors() -> None:
    assert (DOCS / "architecture.svg").read_text(encoding="utf-8") == SCRIPT["drawn"]()


def test_every_room_stands_on_a_floor_and_knows_none_above_it() -> None:
    floors = [
        (name, floor, floor + room.high - 1)
        for floor, rooms in enumerate(SCRIPT["FLOORS"])
        for room in rooms
        for name in room.name.split(", ")
    ]
    top = {name: highest for name, highest, _ in floors}
    bottom = {name: lowest for name, _, lowest in floors}
    modules = {name for name in FILES if name != "fedaudit"}
    assert {name.split(".")[1] for name in modules} - DOORS == set(top)
    for module in modules:
        for other in ours(module) - {"fedaudit"}:
            one, two = module.split(".")[1], other.split(".")[1]
            if not {one, two} & DOORS:
                assert top[one] <= bottom[two], f"{module} imports {other}, from a floor above"


def test_files_of_tensors_are_opened_where_their_order_is_made_canonical() -> None:
    opening = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if re.search(r"\bsafe_open\(|\.metadata\(\)", path.read_text())
    }
    assert opening == {"observe/tensors.py"}
