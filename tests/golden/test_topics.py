"""Estimates of a small run of each topic are compared with stored values.

Another processor may round sums otherwise, so that the test allows for a sample more or less on a
side. Where the code is changed and figures must stay what they are,
``python -m tests.golden.test_topics`` names every digit that moved on one machine; with ``--keep``
it keeps what there is.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.golden.topics import TOPICS, Figures

HERE = Path(__file__).parent
TOLERANCE = 0.08


def kept(topic: str) -> Figures:
    return {
        name: tuple(numbers)
        for name, numbers in json.loads((HERE / f"{topic}.json").read_text()).items()
    }


def rounded(found: Figures) -> Figures:
    """To nine digits, as they are kept."""
    return {
        name: tuple(None if n is None else round(float(n), 9) for n in numbers)
        for name, numbers in found.items()
    }


def moved(before: Figures, now: Figures, tolerance: float) -> list[str]:
    """What came, went, or differs by more than a share of itself (of 1 where it is less)."""
    found = [f"{name} is only on one side" for name in sorted(before.keys() ^ now.keys())]
    for name in sorted(before.keys() & now.keys()):
        one, other = before[name], now[name]
        if len(one) != len(other) or not all(
            a == b or (a is not None and b is not None and abs(a - b) <= tolerance * max(1, abs(a)))
            for a, b in zip(one, other, strict=True)
        ):
            found.append(f"{name}: {one} is now {other}")
    return found


SLOW = ("clusters", "live", "rounds", "tasks")


@pytest.mark.parametrize(
    "topic",
    [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in TOPICS],
)
def test_figures_of_a_small_run_of_each_topic_equal_the_stored_ones(
    topic: str, tmp_path: Path
) -> None:
    assert moved(kept(topic), rounded(TOPICS[topic](tmp_path)), TOLERANCE) == []


def _written(found: Figures) -> str:
    lines = [f" {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for topic, figures in TOPICS.items():
        with TemporaryDirectory() as folder:
            found = rounded(figures(Path(folder)))
        if "--keep" in sys.argv:
            (HERE / f"{topic}.json").write_text(_written(found))
        else:
            print(topic, moved(kept(topic), found, 0.0) or f"{len(found)} figures as kept")
