"""Repeat the runs of claims, and compare them with the committed records."""

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
from docs.claims.figures import OF_A_MACHINE, SECONDS, FigureName, figures_of, path_of, rows
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import RECORD_FILE
from fedaudit.formatting.wording import format_count
from fedaudit.results.aggregate import Value
from fedaudit.results.read import read_record

STUDIES = ROOT / "studies"


class Unit(NamedTuple):
    """Record to repeat."""

    # Name of the record.
    name: str
    # Command that makes it.
    command: Sequence[str]
    # Path of the new record.
    made: Path
    # Path of the committed record.
    committed: Path
    # Whether it is of security games.
    games: bool = False


def again(which: str, *, data_dir: str, out: Path) -> int:
    """Repeat the records of one claim or of all claims. Return 1 if any failed.

    Args:
        which: A claim's name, or "all".
        data_dir: Folder with the data sets; empty for none.
        out: Folder for the runs; interrupted runs in it are resumed.

    Raises:
        BadInput: The claim is unknown, or none of its records was ever run.
    """
    claims = [claim for paper in papers() for claim in paper.claim if which in ("all", claim.id)]
    if not claims:
        near = get_close_matches(which, [claim.id for paper in papers() for claim in paper.claim])
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise BadInput(
            f"no claim is called {which!r}; {hint}docs/claims.md has their names as anchors"
        )
    records = list(dict.fromkeys(record for claim in claims for record in _records(claim)))
    existing = [record for record in records if rows(*record) is not None]
    for record in records:
        if record not in existing:
            print(f"{named(*record)} was never run, so there is no record to compare with")
    if not existing:
        raise BadInput(f"no record of {which!r} was ever run")
    planned = {regimes()[name].study: regimes()[name].hours or 0.0 for name in reversed(regimes())}
    studies = dict.fromkeys(study for study, _ in existing)
    print(
        f"{format_count(len(existing), 'record')} of "
        f"{format_count(len(studies), 'study', 'studies')}. Planned for all of these studies: "
        f"{sum(planned.get(study, 0.0) for study in studies):.1f} h; these records took "
        f"{sum(seconds_of(*record) for record in existing) / 3600:.2f} h when they were made.",
        flush=True,
    )
    return run_units([_unit(study, variant, data_dir, out) for study, variant in existing])


def _records(claim: Claim) -> Iterator[tuple[str, str]]:
    """Yield the records of a claim's comparisons, and the undefended ones of its regimes."""
    for regime in (regimes()[name] for name in claim.regimes):
        yield regime.study, regime.base
        for test in claim.tests:
            for term in (test.one, *test.others):
                if term.value is None:
                    games = regime.kind == "games" and not term.study
                    yield term.study or regime.study, "" if games else variant_of(regime, term)


def seconds_of(study: str, variant: str) -> float:
    values = (rows(study, variant) or {}).get(SECONDS)
    return values[None][None].value if values else 0.0


def _unit(study: str, variant: str, data_dir: str, out: Path) -> Unit:
    name, games = named(study, variant), is_of_games(study)
    folder = out / name
    data = ["--data-dir", data_dir] if data_dir else []
    where = ["--out", str(folder), *data]
    unit = Unit(name, (), folder / RECORD_FILE, path_of(study, variant), games)
    if games:
        command = ["run", str(STUDIES / "games" / f"{study}.toml"), *where]
        return unit._replace(command=command)
    settings = _study(study)
    if variant and variant not in settings.get("variants", {}) and not settings.get("grid"):
        # Another evaluation of the runs of the study.
        return unit._replace(
            command=["attack", str(out / study), *_changed(study, f"-{variant}"), *where]
        )
    seeds = sorted(
        s for s in (rows(study, variant) or {}).get(FigureName("test_accuracy"), ()) if s
    )
    fewer = [f"--seeds={seeds}"] if seeds and seeds != settings.get("seeds") else []
    variant_option = ["--variant", variant] if variant else []
    pool = ["--pool", str(out / "pool")]
    study_file = str(STUDIES / f"{study}.toml")
    changes = [*_changed(study, ".toml"), *fewer]
    return unit._replace(command=["run", study_file, *variant_option, *changes, *pool, *where])


@cache
def _study(name: str) -> dict[str, Any]:
    return tomllib.loads((STUDIES / f"{name}.toml").read_text(encoding="utf-8"))


def _changed(study: str, ending: str) -> list[str]:
    """Return the changed settings in the commands of `results/made.toml`."""
    studies = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
    lines = studies[study]["command"].replace("\\\n", " ").replace(";", "\n").splitlines()
    commands = [shlex.split(line) for line in lines]
    named_so = [words for words in commands if any(word.endswith(ending) for word in words)]
    return [
        word
        for word in (named_so[0] if named_so else [])
        if word.startswith("--") and "." in word.partition("=")[0]
    ]


def fedaudit(words: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "fedaudit", *words], check=False).returncode


def run_units(units: Sequence[Unit], run: Callable[[Sequence[str]], int] = fedaudit) -> int:
    """Create and compare all missing records, in this order. Return 1 if any failed."""
    failed = []
    for place, unit in enumerate(units, 1):
        print(f"\n{unit.name} ({place} of {len(units)})", flush=True)
        if unit.made.is_file():
            print("exists already")
        elif (code := run(unit.command)) != 0 or not unit.made.is_file():
            failed.append(f"{unit.name}: exit code {code} of fedaudit {shlex.join(unit.command)}")
            continue
        try:
            print(compared(unit), flush=True)
        except FedauditError as refusal:
            failed.append(f"{unit.name}: {refusal}")
    print(f"\n{len(units) - len(failed)} of {len(units)} records were repeated.")
    for failure in failed:
        print(f"failed: {failure}")
    return 1 if failed else 0


def compared(unit: Unit) -> str:
    """Describe how far figures and limits are from the committed ones, by kind of figure."""
    now, before = (figures_of(read_record(path)) for path in (unit.made, unit.committed))
    distances_by_kind: dict[str, list[float]] = {}
    for key, by_seed in before.items():
        if key.figure not in OF_A_MACHINE:
            distances_by_kind.setdefault(key.figure, []).extend(
                _distance(by_target[None], now.get(key, {}).get(seed, {}).get(None))
                for seed, by_target in by_seed.items()
            )
    return "\n".join(
        f"  {kind}: {_words(distances)}" for kind, distances in distances_by_kind.items()
    )


def _distance(before: Value, now: Value | None) -> float:
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
    margin = f", by {max(finite):.2g} at most" if finite else ""
    missing = len(others) - len(finite)
    one_side = f"; {missing} with a value or limits on one side only" if missing else ""
    return f"{len(others)} of {len(distances)} differ{margin}{one_side}"
