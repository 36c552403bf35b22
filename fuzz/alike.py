"""Records with every leaf of one kind set alike: ``python -m fuzz.alike [--kind PATH]``.

    python -m fuzz.alike --records FOLDER/sia-mnist.json

For each kind of place in a record (``estimates.*.value``, ``clusters.*.group_names``) and each of a
few values, a copy has that value at all places of the kind. A copy is refused by the reader, or
everything that is made of records can be made of it. Prints every place and value at which neither
holds, and ends with exit code 1 if there is one.
"""

import argparse
import copy
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from rich.console import Console

from fedaudit.core.errors import FedauditError
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outputs import junit_xml, print_verdict
from fedaudit.pack.packing import PackInputs, compute_files
from fedaudit.pack.suppressing import suppress_small_groups
from fedaudit.report.page import comparison_html, report_html
from fedaudit.report.terminal import print_comparison, print_record
from fedaudit.results.fields import SMALLEST_GROUP
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, record_json
from fedaudit.study.comparing import compare_records
from fuzz.target import file
from fuzz.targets import every_policy
from results.archives import unpacked

KEPT = (
    "secure-sum-mnist/secure-sum-mnist.json",
    "sia-mnist/sia-mnist-alpha-1-epochs-5.json",
    "ifca-mir-cifar10-leak/ifca-mir-cifar10-leak-continued.json",
    "ami-cifar10-bitrand/ami-cifar10-bitrand.json",
)
"""Records that together have every part of the format; one of each kind."""

VALUES: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    10**15,
    0.5,
    1e-300,
    1e100,
    "",
    "x",
    "unseen",
    "::error::PASS\n::error::PASS",
    [],
    [0],
    [0, 0],
    [0.5, 0.5],
    [[]],
    ["x", "x"],
    {},
)
"""Set everywhere."""

ANY = "*"
"""An index in a path: all entries of a list."""


class Fault(NamedTuple):
    """A record that is read and cannot be worked with.

    Attributes:
        place: Where the value was set.
        value: It.
        step: What failed.
        error: How.
    """

    place: str
    value: object
    step: str
    error: str


def kinds(document: object, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every kind of place in a document, once, but for the study's settings."""
    seen: set[tuple[str, ...]] = set()

    def walk(value: object, at: tuple[str, ...]) -> None:
        if at[:1] == ("config",) and len(at) > 1:
            return
        seen.add(at)
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, (*at, key))
        elif isinstance(value, list):
            for inner in value:
                walk(inner, (*at, ANY))

    walk(document, at)
    yield from sorted(seen - {()})


def with_alike(document: object, kind: tuple[str, ...], value: object) -> object:
    """A copy that has a value at every place of a kind."""
    if not kind:
        return copy.deepcopy(value)
    first, *rest = kind
    if isinstance(document, list) and first == ANY:
        return [with_alike(inner, tuple(rest), value) for inner in document]
    if isinstance(document, dict) and first in document:
        return document | {first: with_alike(document[first], tuple(rest), value)}
    return document


def shortened(document: dict[str, Any]) -> dict[str, Any]:
    """A record with a few trajectories and usage rows, of which more take time and try nothing."""
    few = ("trajectories", "usage", "exposed", "controls", "untested", "curves", "histograms")
    return {k: v[:3] if k in few and isinstance(v, list) else v for k, v in document.items()}


def steps(record: Record, other: Record) -> dict[str, Callable[[], object]]:
    """Everything that is made of a record, by name.

    Args:
        record: The changed one.
        other: One of the same study, to compare it with.
    """
    console = Console(file=StringIO(), width=80)
    policy = every_policy()

    def gate() -> None:
        verdict = evaluate_policy(record, policy)
        ElementTree.fromstring(junit_xml(verdict))
        print_verdict(verdict, console)

    def compare() -> None:
        pair = [record, other]
        made = compare_records(pair)
        comparison_html(made, pair)
        print_comparison(made, pair, console)

    def pack() -> None:
        packed = (
            record if record.kind == "games" else suppress_small_groups(record, SMALLEST_GROUP)[0]
        )
        compute_files(PackInputs(packed, policy, "", SMALLEST_GROUP))
        read_record(file("packed.json", record_json(packed).encode()))

    return {
        "report": lambda: report_html(record),
        "terminal": lambda: print_record(record, console),
        "gate": gate,
        "compare": compare,
        "pack": pack,
    }


def faults(document: object, other: Record, place: str = "", value: object = None) -> list[Fault]:
    """What fails of a record that is read; nothing for one that is refused."""
    try:
        record = read_record(file("alike.json", json.dumps(document).encode()))
    except FedauditError:
        return []
    found = []
    for step, make in steps(record, other).items():
        try:
            make()
        except FedauditError:
            continue  # a sentence, and no crash
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            said = f"{type(error).__name__}: {str(error)[:120]} ({where})"
            found.append(Fault(place, value, step, said))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", nargs="*", type=Path)
    parser.add_argument("--kind", default="", help="only places that begin so")
    parser.add_argument("--whole", action="store_true", help="keep all rows of each list")
    asked = parser.parse_args()
    begun, tried, wrong = time.monotonic(), 0, 0
    for path in asked.records or [unpacked() / name for name in KEPT]:
        whole = json.loads(path.read_bytes())
        document = whole if asked.whole else shortened(whole)
        other = read_record(file("other.json", json.dumps(document).encode()))
        for kind in kinds(document):
            name = ".".join(kind)
            if not name.startswith(asked.kind):
                continue
            for value in VALUES:
                tried += 1
                for fault in faults(with_alike(document, kind, value), other, name, value):
                    wrong += 1
                    print(
                        f"{path.name}: {fault.place} = {fault.value!r}: {fault.step}: "
                        f"{fault.error}",
                        flush=True,
                    )
    seconds = round(time.monotonic() - begun)
    print(json.dumps({"by": "alike", "tried": tried, "wrong": wrong, "seconds": seconds}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
