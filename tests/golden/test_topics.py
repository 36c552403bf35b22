"""Estimates of a small run of each topic are compared with stored values.

Another processor may round sums differently, so the test tolerates a single sample on the other
side of a threshold. If a change of the code must not change figures,
``python -m tests.golden.test_topics`` lists every changed digit on one machine; with ``--keep`` it
stores the current figures.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.golden.topics import TOPICS, Figures

HERE = Path(__file__).parent
TOLERANCE = 0.08


def read_stored(topic: str) -> Figures:
    return {
        name: tuple(numbers)
        for name, numbers in json.loads((HERE / f"{topic}.json").read_text()).items()
    }


def rounded(values: Figures) -> Figures:
    """Round figures to the nine digits that are stored."""
    return {
        name: tuple(None if n is None else round(float(n), 9) for n in numbers)
        for name, numbers in values.items()
    }


def list_changes(before: Figures, now: Figures, tolerance: float) -> list[str]:
    """Return added, removed and changed figures; the tolerance is relative, absolute below 1."""
    changes = [f"{name} is only on one side" for name in sorted(before.keys() ^ now.keys())]
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name], now[name]
        if len(old) != len(new) or not all(
            a == b or (a is not None and b is not None and abs(a - b) <= tolerance * max(1, abs(a)))
            for a, b in zip(old, new, strict=True)
        ):
            changes.append(f"{name}: {old} is now {new}")
    return changes


SLOW = ("clusters", "live", "rounds", "tasks")


@pytest.mark.parametrize(
    "topic",
    [pytest.param(topic, marks=pytest.mark.slow) if topic in SLOW else topic for topic in TOPICS],
)
def test_figures_of_a_small_run_of_each_topic_equal_the_stored_ones(
    topic: str, tmp_path: Path
) -> None:
    assert list_changes(read_stored(topic), rounded(TOPICS[topic](tmp_path)), TOLERANCE) == []


def _written(values: Figures) -> str:
    lines = [f" {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for topic, figures in TOPICS.items():
        with TemporaryDirectory() as folder:
            current = rounded(figures(Path(folder)))
        if "--keep" in sys.argv:
            (HERE / f"{topic}.json").write_text(_written(current))
        else:
            changes = list_changes(read_stored(topic), current, 0.0)
            print(topic, changes or f"{len(current)} figures as stored")
