"""JSON documents with parts replaced, removed or duplicated.

    python -m fuzz.documents "record" --runs 100000

Needs hypothesis. Stops at the first document for which a reader raises an error that is not from
fedaudit, and prints the smallest such document. Otherwise prints one line of JSON.
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
"""Texts that JSON libraries do not write by default."""

_MARK = "fuzz: raw text goes here"


def paths(document: Json, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the paths of all parts of a document, with the first four entries of each list."""
    result = [path]
    if isinstance(document, dict):
        for key, value in document.items():
            result += paths(value, (*path, key))
    if isinstance(document, list):
        for number, value in enumerate(document[:4]):
            result += paths(value, (*path, number))
    return result


def changed(document: Json, draw: st.DataObject, choices: list[tuple[object, ...]]) -> Json:
    """Return a copy of the document with one to three parts changed."""
    document = copy.deepcopy(document)
    for _ in range(draw.draw(st.integers(1, 3))):
        *path, last = draw.draw(st.sampled_from(choices))
        parent = document
        try:
            for key in path:
                parent = parent[key]  # type: ignore[index]
            change = draw.draw(
                st.sampled_from(["hostile", "any", "remove", "double", "key", "raw"])
            )
            if change == "hostile":
                # Copied, because a later change may modify this value.
                parent[last] = copy.deepcopy(draw.draw(st.sampled_from(HOSTILE)))  # type: ignore[index]
            elif change == "any":
                leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
                parent[last] = draw.draw(leaf | st.lists(leaf, max_size=3))  # type: ignore[index]
            elif change == "remove":
                del parent[last]  # type: ignore[attr-defined]
            elif change == "double" and isinstance(parent[last], list):  # type: ignore[index]
                parent[last] = parent[last] * 2  # type: ignore[index]
            elif change == "key" and isinstance(parent, dict):
                parent[draw.draw(st.text(max_size=20))] = parent.get(last)
            elif change == "raw":
                parent[last] = _MARK  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this part
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "target", choices=[name for name, target in TARGETS.items() if target.document]
    )
    parser.add_argument("--runs", type=int, default=100_000)
    args = parser.parse_args()
    target = TARGETS[args.target]
    assert target.document is not None
    seeds = [target.document(seed) for seed in target.seeds()]
    documents = [json.loads(seed.text) for seed in seeds]
    choices = [[path for path in paths(each) if path] or [("format",)] for each in documents]
    counts = {"tried": 0, "refused": 0}
    start = time.monotonic()

    @settings(
        max_examples=args.runs,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data(), st.integers(0, len(documents) - 1), st.sampled_from(RAW))
    def read_changed(draw: st.DataObject, number: int, raw: str) -> None:
        text = json.dumps(changed(documents[number], draw, choices[number]))
        content = text.replace(json.dumps(_MARK), raw).encode("utf-8", "surrogatepass")
        counts["refused"] += refused(target.read, seeds[number].replace_document(content))
        counts["tried"] += 1

    read_changed()
    seconds = round(time.monotonic() - start)
    print(json.dumps({"target": args.target, "by": "documents", **counts, "seconds": seconds}))


if __name__ == "__main__":
    main()
