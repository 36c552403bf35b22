"""Records in which all entries of one kind have the same value.

    python -m fuzz.same_values [--kind PATH] [--records FOLDER/sia-mnist.json]

A *kind* is a path in a record with any index for lists, such as ``estimates.*.value``. For each
kind and each of several values, a copy of the record has that value in all entries of the kind. The
reader must raise an error, or every output of a record (report, gate, comparison, pack) must work.
Prints each kind and value for which an output fails. The exit code is then 1, otherwise 0.
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

RECORDS = (
    "secure-sum-mnist/secure-sum-mnist.json",
    "sia-mnist/sia-mnist-alpha-1-epochs-5.json",
    "ifca-mir-cifar10-leak/ifca-mir-cifar10-leak-continued.json",
    "ami-cifar10-bitrand/ami-cifar10-bitrand.json",
)
"""Records that together contain every part of the format."""

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
"""Values that replace those of a kind."""

ANY = "*"
"""Any index of a list, in a path."""


class Fault(NamedTuple):
    """Failure of an output for a record that the reader accepts.

    Attributes:
        kind: Path of the changed entries.
        value: Value of these entries.
        output: Name of the output that failed.
        error: Type, message and line of the error.
    """

    kind: str
    value: object
    output: str
    error: str


def kinds(document: object) -> Iterator[tuple[str, ...]]:
    """Yield every kind of entry in a document, except for the settings of the study."""
    seen: set[tuple[str, ...]] = set()

    def walk(value: object, path: tuple[str, ...]) -> None:
        if path[:1] == ("config",) and len(path) > 1:
            return
        seen.add(path)
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, (*path, key))
        elif isinstance(value, list):
            for inner in value:
                walk(inner, (*path, ANY))

    walk(document, ())
    yield from sorted(seen - {()})


def with_same_value(document: object, kind: tuple[str, ...], value: object) -> object:
    """Return a copy with the value in every entry of a kind."""
    if not kind:
        return copy.deepcopy(value)
    first, *rest = kind
    if isinstance(document, list) and first == ANY:
        return [with_same_value(inner, tuple(rest), value) for inner in document]
    if isinstance(document, dict) and first in document:
        return document | {first: with_same_value(document[first], tuple(rest), value)}
    return document


def shortened(document: dict[str, Any]) -> dict[str, Any]:
    """Return a record with at most three rows in each long table, which saves time."""
    tables = ("trajectories", "usage", "exposed", "controls", "untested", "curves", "histograms")
    return {
        key: value[:3] if key in tables and isinstance(value, list) else value
        for key, value in document.items()
    }


def outputs(record: Record, other: Record) -> dict[str, Callable[[], object]]:
    """Return a function for each output of a record, by name.

    Args:
        record: The changed record.
        other: A record of the same study for the comparison.
    """
    console = Console(file=StringIO(), width=80)
    policy = every_policy()

    def gate() -> None:
        verdict = evaluate_policy(record, policy)
        ElementTree.fromstring(junit_xml(verdict))
        print_verdict(verdict, console)

    def compare() -> None:
        pair = [record, other]
        comparison = compare_records(pair)
        comparison_html(comparison, pair)
        print_comparison(comparison, pair, console)

    def pack() -> None:
        released = (
            record if record.kind == "games" else suppress_small_groups(record, SMALLEST_GROUP)[0]
        )
        compute_files(PackInputs(released, policy, "", SMALLEST_GROUP))
        read_record(file("packed.json", record_json(released).encode()))

    return {
        "report": lambda: report_html(record),
        "terminal": lambda: print_record(record, console),
        "gate": gate,
        "compare": compare,
        "pack": pack,
    }


def faults(document: object, other: Record, kind: str = "", value: object = None) -> list[Fault]:
    """Return the outputs that fail; none if the reader raises an error."""
    try:
        record = read_record(file("changed.json", json.dumps(document).encode()))
    except FedauditError:
        return []
    failures = []
    for output, write in outputs(record, other).items():
        try:
            write()
        except FedauditError:
            continue  # errors of fedaudit explain the problem to the user
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            message = f"{type(error).__name__}: {str(error)[:120]} ({where})"
            failures.append(Fault(kind, value, output, message))
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", nargs="*", type=Path)
    parser.add_argument("--kind", default="", help="only kinds that start with this path")
    parser.add_argument("--whole", action="store_true", help="keep all rows of each table")
    args = parser.parse_args()
    start, n_tried, n_failed = time.monotonic(), 0, 0
    for path in args.records or [unpacked() / name for name in RECORDS]:
        whole = json.loads(path.read_bytes())
        document = whole if args.whole else shortened(whole)
        other = read_record(file("other.json", json.dumps(document).encode()))
        for kind in kinds(document):
            name = ".".join(kind)
            if not name.startswith(args.kind):
                continue
            for value in VALUES:
                n_tried += 1
                for fault in faults(with_same_value(document, kind, value), other, name, value):
                    n_failed += 1
                    print(
                        f"{path.name}: {fault.kind} = {fault.value!r}: {fault.output}: "
                        f"{fault.error}",
                        flush=True,
                    )
    seconds = round(time.monotonic() - start)
    print(
        json.dumps({"by": "same values", "tried": n_tried, "failed": n_failed, "seconds": seconds})
    )
    sys.exit(bool(n_failed))


if __name__ == "__main__":
    main()
