"""Carrying out again what rows of the page rest on, and comparing every figure with the records."""

import math
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docs.claims.data import ROOT, Claim, is_of_games, named, papers, regimes, variant_of
from docs.claims.figures import OF_A_MACHINE, SECONDS, Asked, path_of, rows, rows_at
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import RECORD_FILE
from fedaudit.report.wording import plural
from fedaudit.results.aggregate import Value

STUDIES = ROOT / "studies"


class Unit(NamedTuple):
    """A record that is to be made again.

    Attributes:
        name: Of the record.
        command: What makes it.
        made: Where it will lie.
        committed: What it is held against.
        games: Whether it is of security games.
    """

    name: str
    command: Sequence[str]
    made: Path
    committed: Path
    games: bool = False


def again(which: str, *, data_dir: str, out: Path) -> int:
    """Makes the records of a claim, or of all, again; 1 if any could not be made.

    Args:
        which: A claim's name, or "all".
        data_dir: Folder with the data sets; empty for none.
        out: Folder for the runs; those that are there go on where they were stopped.

    Raises:
        BadInput: No claim is called so, or nothing of it was ever run.
    """
    claims = [claim for paper in papers() for claim in paper.claim if which in ("all", claim.id)]
    if not claims:
        near = get_close_matches(which, [claim.id for paper in papers() for claim in paper.claim])
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise BadInput(
            f"no claim is called {which!r}; {hint}docs/claims.md has their names as anchors"
        )
    asked = list(dict.fromkeys(of for claim in claims for of in _records(claim)))
    there = [of for of in asked if rows(*of) is not None]
    for of in asked:
        if of not in there:
            print(f"{named(*of)} was never run, there is nothing to hold it against")
    if not there:
        raise BadInput(f"nothing that {which!r} rests on was ever run")
    planned = {regimes()[name].study: regimes()[name].hours or 0.0 for name in reversed(regimes())}
    studies = dict.fromkeys(study for study, _ in there)
    print(
        f"{plural(len(there), 'record')} of {plural(len(studies), 'study', 'studies')}. "
        "Planned for all of these studies: "
        f"{sum(planned.get(study, 0.0) for study in studies):.1f} h; these records took "
        f"{sum(seconds_of(*of) for of in there) / 3600:.2f} h when they were made.",
        flush=True,
    )
    return carry_out([_unit(study, variant, data_dir, out) for study, variant in there])


def _records(claim: Claim) -> Iterator[tuple[str, str]]:
    """What a claim's comparisons are of, and the bases by which regimes leak."""
    for regime in (regimes()[name] for name in claim.regimes):
        yield regime.study, regime.base
        for test in claim.tests:
            for term in (test.one, *test.others):
                if term.value is None:
                    games = regime.kind == "games" and not term.study
                    yield term.study or regime.study, "" if games else variant_of(regime, term)


def seconds_of(study: str, variant: str) -> float:
    """What a committed record took; 0 where it does not say, or is not there."""
    known = (rows(study, variant) or {}).get(SECONDS)
    return known[None][None].value if known else 0.0


def _unit(study: str, variant: str, data_dir: str, out: Path) -> Unit:
    name, games = named(study, variant), is_of_games(study)
    made = out / name
    data = ["--data-dir", data_dir] if data_dir else []
    where = ["--out", str(made), *data]
    found = Unit(name, (), made / RECORD_FILE, path_of(study, variant), games)
    if games:
        command = ["games", str(STUDIES / "games" / f"{study}.toml"), *where]
        return found._replace(command=command)
    known = _study(study)
    if variant and variant not in known.get("variants", {}) and not known.get("grid"):
        # Of the same runs, by another evaluation, after the study itself.
        return found._replace(
            command=["attack", str(out / study), *_changed(study, f"-{variant}"), *where]
        )
    seeds = sorted(s for s in (rows(study, variant) or {}).get(Asked("test_accuracy"), ()) if s)
    fewer = [f"--seeds={seeds}"] if seeds and seeds != known.get("seeds") else []
    of = ["--variant", variant] if variant else []
    pool = ["--pool", str(out / "pool")]
    study_file = str(STUDIES / f"{study}.toml")
    changes = [*_changed(study, ".toml"), *fewer]
    return found._replace(command=["run", study_file, *of, *changes, *pool, *where])


@cache
def _study(name: str) -> dict[str, Any]:
    return tomllib.loads((STUDIES / f"{name}.toml").read_text(encoding="utf-8"))


def _changed(study: str, ending: str) -> list[str]:
    """Settings that `results/made.toml` changes in the command that names such a file or folder."""
    made = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
    lines = made[study]["command"].replace("\\\n", " ").replace(";", "\n").splitlines()
    of = [shlex.split(line) for line in lines]
    named_so = [words for words in of if any(word.endswith(ending) for word in words)]
    return [
        word
        for word in (named_so[0] if named_so else [])
        if word.startswith("--") and "." in word.partition("=")[0]
    ]


def fedaudit(words: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    return subprocess.run([sys.executable, "-m", "fedaudit", *words], check=False).returncode


def carry_out(units: Sequence[Unit], run: Callable[[Sequence[str]], int] = fedaudit) -> int:
    """Makes every record that is not there yet, whatever fails, and compares it; 1 if any failed.

    Args:
        units: In an order in which each needs earlier ones only.
        run: Carries out a command, and gives its exit code.
    """
    failed = []
    for place, unit in enumerate(units, 1):
        print(f"\n{unit.name} ({place} of {len(units)})", flush=True)
        if unit.made.is_file():
            print("was carried out before")
        elif (code := run(unit.command)) != 0 or not unit.made.is_file():
            failed.append(f"{unit.name}: exit code {code} of fedaudit {shlex.join(unit.command)}")
            continue
        try:
            print(compared(unit), flush=True)
        except FedauditError as refusal:
            failed.append(f"{unit.name}: {refusal}")
    print(f"\n{len(units) - len(failed)} of {len(units)} records were made again.")
    for one in failed:
        print(f"failed: {one}")
    return 1 if failed else 0


def compared(unit: Unit) -> str:
    """How far a record's figures, and their limits, are from the committed ones, kind by kind."""
    now, before = (rows_at(path) for path in (unit.made, unit.committed))
    apart: dict[str, list[float]] = {}
    for asked, of in before.items():
        if asked.figure not in OF_A_MACHINE:
            apart.setdefault(asked.figure, []).extend(
                _distance(there[None], now.get(asked, {}).get(seed, {}).get(None))
                for seed, there in of.items()
            )
    return "\n".join(f"  {kind}: {_words(distances)}" for kind, distances in apart.items())


def _distance(before: Value, now: Value | None) -> float:
    """The largest of the differences of value and limits; infinite if one is missing."""
    if now is None:
        return math.inf
    ends = (before.value, before.low, before.high), (now.value, now.low, now.high)
    both = list(zip(*ends, strict=True))
    if any((old is None) != (new is None) for old, new in both):
        return math.inf
    return max(abs(old - new) for old, new in both if old is not None and new is not None)


def _words(distances: Sequence[float]) -> str:
    others = [distance for distance in distances if distance]
    if not others:
        return f"{len(distances)} equal to the digit"
    finite = [distance for distance in others if distance < math.inf]
    by = f", by {max(finite):.2g} at most" if finite else ""
    missing = len(others) - len(finite)
    one_side = f"; {missing} with a value or limits on one side only" if missing else ""
    return f"{len(others)} of {len(distances)} differ{by}{one_side}"
