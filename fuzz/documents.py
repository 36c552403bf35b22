"""Documents with parts exchanged, taken out or doubled: ``python -m fuzz.documents TARGET``.

    python -m fuzz.documents "record" --runs 100000

Needs hypothesis. Ends at the first document that makes a reader raise anything but a refusal, with
the smallest one that does so; prints one line of JSON else.
"""

import argparse
import copy
import json
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.target import refused
from fuzz.targets import TARGETS

Json = object

HOSTILE: list[Json] = [
    None,
    True,
    0,
    -1,
    10**18,
    2**64 - 1,
    10**400,
    1e308,
    -0.0,
    "",
    "x" * 20_000,
    "<script>alert(1)</script>",
    "\x1b[2J\x00\u202e",
    "../../../../etc/passwd",
    "\ud800",
    "=cmd|' /C calc'!A0",
    "%{x}",
    [],
    {},
    [[[[]]]],
    {"__class__": "os.system", "": {}},
    [0] * 5000,
]

RAW = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, '{"a":1,"a":2}', "[" * 3000, "\\u0000"]
"""What JSON libraries write only if asked to."""

_MARK = "fuzz: raw text goes here"


def places(document: Json, at: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Where parts of a document are; of long lists the first few."""
    found = [at]
    if isinstance(document, dict):
        for key, value in document.items():
            found += places(value, (*at, key))
    if isinstance(document, list):
        for number, value in enumerate(document[:4]):
            found += places(value, (*at, number))
    return found


def changed(document: Json, draw: st.DataObject, where: list[tuple[object, ...]]) -> Json:
    """The document with one to three parts changed."""
    document = copy.deepcopy(document)
    for _ in range(draw.draw(st.integers(1, 3))):
        *path, last = draw.draw(st.sampled_from(where))
        place = document
        try:
            for step in path:
                place = place[step]  # type: ignore[index]
            how = draw.draw(st.sampled_from(["hostile", "any", "out", "double", "key", "raw"]))
            if how == "hostile":
                # A copy: a later change may be one of its own parts.
                place[last] = copy.deepcopy(draw.draw(st.sampled_from(HOSTILE)))  # type: ignore[index]
            elif how == "any":
                leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
                place[last] = draw.draw(leaf | st.lists(leaf, max_size=3))  # type: ignore[index]
            elif how == "out":
                del place[last]  # type: ignore[attr-defined]
            elif how == "double" and isinstance(place[last], list):  # type: ignore[index]
                place[last] = place[last] * 2  # type: ignore[index]
            elif how == "key" and isinstance(place, dict):
                place[draw.draw(st.text(max_size=20))] = place.get(last)
            elif how == "raw":
                place[last] = _MARK  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this part away
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[n for n, one in TARGETS.items() if one.document])
    parser.add_argument("--runs", type=int, default=100_000)
    asked = parser.parse_args()
    target = TARGETS[asked.target]
    assert target.document is not None
    found = [target.document(seed) for seed in target.seeds()]
    documents = [json.loads(one.text) for one in found]
    where = [[at for at in places(one) if at] or [("format",)] for one in documents]
    counts = {"tried": 0, "refused": 0}
    begun = time.monotonic()

    @settings(
        max_examples=asked.runs,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data(), st.integers(0, len(documents) - 1), st.sampled_from(RAW))
    def one(draw: st.DataObject, number: int, raw: str) -> None:
        text = json.dumps(changed(documents[number], draw, where[number]))
        content = text.replace(json.dumps(_MARK), raw).encode("utf-8", "surrogatepass")
        counts["refused"] += refused(target.read, found[number].within(content))
        counts["tried"] += 1

    one()
    seconds = round(time.monotonic() - begun)
    print(json.dumps({"target": asked.target, "by": "documents", **counts, "seconds": seconds}))


if __name__ == "__main__":
    main()
