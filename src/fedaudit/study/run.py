"""A whole study: every seed's run, the figures over all of them, and the record."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fedaudit import __version__
from fedaudit.attacks.catalog import ATTACKS
from fedaudit.core import Sees
from fedaudit.defenses.clip import ClientDP, client_epsilon
from fedaudit.engines.base import Engine
from fedaudit.engines.local import local_engine
from fedaudit.errors import BadInput, Refusal
from fedaudit.metrics import Share, combined, generalisation_gap, holm, mean_over_seeds, share
from fedaudit.observe.measurements import stacked
from fedaudit.observe.store import Stored
from fedaudit.observe.tensors import write_tensors
from fedaudit.study.analysis import Findings, analyse
from fedaudit.study.config import Study, study_from
from fedaudit.study.controls import controls
from fedaudit.study.identity import settings_of
from fedaudit.study.observing import Work, disk_needed, observe
from fedaudit.study.planted import planted_leak
from fedaudit.study.record import (
    AttackRow,
    ClientRow,
    ControlResult,
    Environment,
    Figure,
    Record,
    UtilityResult,
    ViewRow,
    write_record,
)
from fedaudit.study.setup import Setup, setup

STUDY_FILE = "study.json"
FORMAL_DELTA = 1e-5


def run_study(
    study: Study,
    out: Path,
    *,
    data_dir: Path | None = None,
    workers: int = 1,
    tick: Callable[[int, int, int], None] = lambda seed, round, rounds: None,
    say: Callable[[str], None] = lambda text: None,
) -> Record:
    """Carries a study out and writes its record.

    Everything that cannot work is refused before anything is trained. A study that was stopped
    at any moment goes on where it was when it is run again with the same folder, and ends with
    the same content hash.

    Args:
        study: Its settings.
        out: Folder for the runs and the record.
        data_dir: Folder with data sets; by default what ``FEDAUDIT_DATA`` says.
        workers: Processes to train in; 0 for one a core. Changes no result.
        tick: Called after each round with (seed, round, rounds).
        say: Takes lines of text for the user.

    Raises:
        Refusal: Settings, data or the folder are unusable.
    """
    clock = Clock()
    runs = [setup(study, seed, data_dir) for seed in study.seeds]
    _claim(out, study)
    _announce(runs, out, say)
    count = min(workers or os.cpu_count() or 1, study.partition.clients)
    work = Work(local_engine(count), count, tick)
    stored = [_observed(run, out, work) for run in runs]
    return conclude(runs, stored, out, work.engine, clock)


class Clock:
    """When a study was started, and how long it has taken since."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._begin, 1)


def conclude(
    runs: Sequence[Setup],
    stored: Sequence[Sequence[Stored]],
    out: Path,
    engine: Engine,
    clock: Clock,
) -> Record:
    """Makes figures, controls and record from what was measured, and writes the record.

    Args:
        runs: The runs of one study.
        stored: For each run, its measured rounds.
        out: Folder of the record.
        engine: Where the twin run of the planted leak trains.
        clock: For the record's times.
    """
    # First, so that a folder that cannot be written is found out before the work.
    out.mkdir(parents=True, exist_ok=True)
    findings, checks = Findings(), list[ControlResult]()
    for run, rounds in zip(runs, stored, strict=True):
        analyse(run, stacked(one.measured for one in rounds), findings)
        checks += controls(run, findings)
        if run.study.figures.planted_leak:
            checks += planted_leak(run, engine)
    utility = [_utility(run, rounds) for run, rounds in zip(runs, stored, strict=True)]
    record = assembled(runs, stored, findings, checks, utility, _environment(clock))
    write_record(record, out / "record.json")
    return record


def _environment(clock: Clock) -> Environment:
    return Environment(
        versions=_versions(),
        commit=_commit(),
        device=f"{platform.machine()} CPU, {os.cpu_count()} cores",
        started=clock.started,
        seconds=clock.seconds,
    )


def run_folder(out: Path, seed: int) -> Path:
    """The folder of one run of a study."""
    return out / f"seed-{seed}"


def _observed(run: Setup, out: Path, work: Work) -> list[Stored]:
    folder = run_folder(out, run.seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(run.deal.audit.tensors(), folder / "audit.safetensors")
    return observe(run, folder, work)


def assembled(
    runs: Sequence[Setup],
    stored: Sequence[Sequence[Stored]],
    findings: Findings,
    checks: list[ControlResult],
    utility: list[UtilityResult],
    environment: Environment,
) -> Record:
    """The record of runs of one study."""
    first, study = runs[0], runs[0].study
    figures = _corrected(findings, study.figures.alpha) + _formal_epsilon(first)
    return Record(
        name=study.name,
        content_hash=_content_hash(settings_of(study), stored, figures),
        config=study.model_dump(mode="json"),
        seeds=list(study.seeds),
        evaluation=study.figures.evaluation,
        nobody_is_a_member=study.figures.nobody_is_a_member,
        environment=environment,
        view=ViewRow(
            name=first.view.name,
            sees=_names(first.view.offers),
            description=first.view.description,
        ),
        attacks=_attack_rows(first, findings),
        clients=_clients(first),
        findings=figures,
        curves=findings.curves,
        trajectories=findings.trajectories,
        histograms=findings.histograms,
        groups=findings.groups,
        exposed=findings.exposed,
        controls=checks,
        utility=utility,
        untested=_untested(first),
    )


def _claim(out: Path, study: Study) -> None:
    """Makes the folder this study's own, or refuses one that holds another."""
    path = out / STUDY_FILE
    text = study.model_dump_json(indent=1)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if path.exists():
            there = study_from(json.loads(path.read_text(encoding="utf-8")), source=str(path))
            if settings_of(there) != settings_of(study):
                raise BadInput(
                    f"{out} holds a study with other settings ({there.name!r}); choose another "
                    "folder with --out, or delete it"
                )
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, Refusal):
            raise
        raise BadInput(f"{out} cannot be used ({error}); choose another folder") from error


def _announce(runs: Sequence[Setup], out: Path, say: Callable[[str], None]) -> None:
    first = runs[0]
    sizes = ", ".join(f"{client}: {size}" for client, size in first.deal.sizes.items())
    need = sum(disk_needed(run) for run in runs)
    free = shutil.disk_usage(out).free
    say(f"clients' sizes (seed {first.seed}): {sizes}")
    say(f"adversary: {first.view.description}")
    say(f"disk: about {_size(need)} in {out}, {_size(free)} free")
    for name, reason in first.refused.items():
        say(f"not possible in this view: {name} ({reason})")
    if need > free:
        raise BadInput(
            f"this study needs about {_size(need)} and {out} has {_size(free)} free; choose "
            'another folder, or audit.keep = "signals"'
        )


def _size(count: int) -> str:
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"


def _corrected(findings: Findings, alpha: float) -> list[Figure]:
    """All figures and their means over runs, with significance corrected over the whole study.

    Means make a family of their own: a reader looks at them or at single runs, not at the
    largest of both.
    """
    single = _with_significance(findings.figures, findings.p_values, alpha)
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, figure in enumerate(findings.figures):
        if figure.value is not None and figure.metric != "epsilon":
            key = (figure.attack, figure.contrast, figure.target, figure.metric)
            groups.setdefault(key, []).append(place)
    several = [places for places in groups.values() if len(places) > 1]
    means = [_mean([findings.figures[place] for place in places]) for places in several]
    p_values = {
        row: combined([findings.p_values[place] for place in places])
        for row, places in enumerate(several)
        if all(place in findings.p_values for place in places)
    }
    return single + _with_significance(means, p_values, alpha)


def _formal_epsilon(run: Setup) -> list[Figure]:
    """What the accountant promises of a defense with a formal guarantee."""
    defense = next(iter(run.defenses.values()), None)
    if not isinstance(defense, ClientDP):
        return []
    rounds = run.study.training.rounds
    epsilon = client_epsilon(defense.noise_multiplier, rounds, delta=FORMAL_DELTA)
    finite = epsilon < float("inf")
    return [
        Figure(
            defense=run.study.defense.name,
            view=run.view.name,
            contrast="unseen",
            metric="formal_epsilon",
            value=epsilon if finite else None,
            method=f"Renyi accountant, delta {FORMAL_DELTA:g}",
            note=f"unit: a client's whole contribution to each of {rounds} uploads"
            if finite
            else "without noise there is no guarantee",
        )
    ]


def _with_significance(
    figures: Sequence[Figure], p_values: Mapping[int, float], alpha: float
) -> list[Figure]:
    places = sorted(p_values)
    significant = holm([p_values[place] for place in places], alpha=alpha).significant
    by_place = dict(zip(places, significant, strict=True))
    return [
        figure.model_copy(update={"significant": by_place.get(place)})
        for place, figure in enumerate(figures)
    ]


def _mean(figures: Sequence[Figure]) -> Figure:
    """One figure of several runs."""
    mean = mean_over_seeds([figure.value for figure in figures if figure.value is not None])
    return figures[0].model_copy(
        update={
            "seed": None,
            "value": mean.value,
            # All that is averaged are shares; Student's interval does not know that.
            "low": None if mean.low is None else max(mean.low, 0.0),
            "high": None if mean.high is None else min(mean.high, 1.0),
            "method": mean.method,
            "n_members": sum(figure.n_members for figure in figures),
            "n_nonmembers": sum(figure.n_nonmembers for figure in figures),
            "realised_fpr": None,
            "note": f"mean over {mean.seeds} seeds",
        }
    )


def _utility(run: Setup, stored: Sequence[Stored]) -> UtilityResult:
    """Accuracies of the global model, as counted in the measured rounds."""
    tested = len(run.dataset.test)
    counts = [int(one.notes["test_correct/global"]) for one in stored]
    notes = stored[-1].notes
    test = share(counts[-1], tested)
    train: Share = share(int(notes["train_correct/global"]), int(notes["train_total/global"]))
    return UtilityResult(
        defense=run.study.defense.name,
        seed=run.seed,
        test_accuracy=test.value,
        test_low=test.low,
        test_high=test.high,
        n_test=tested,
        train_accuracy=train.value,
        generalisation_gap=generalisation_gap(train, test).value,
        rounds=[one.measured.index for one in stored],
        accuracy_by_round=[count / tested for count in counts],
    )


def _attack_rows(run: Setup, findings: Findings) -> list[AttackRow]:
    rows = []
    for name in [*run.attacks, *run.refused]:
        attack = run.attacks.get(name, ATTACKS[name])
        failed = findings.failed.get(name, {})
        everywhere = len(failed) == len(run.study.seeds) * len(run.study.audit.targets)
        reason = "; ".join(failed.values()) or run.refused.get(name, "")
        rows.append(
            AttackRow(
                name=name,
                signals=[signal.name for signal in attack.signals],
                over_clients=attack.rule.over_clients,
                over_rounds=attack.rule.over_rounds,
                needs=_names(attack.needs),
                source=attack.source,
                status=("failed" if everywhere else "refused" if name in run.refused else "run"),
                note=reason,
            )
        )
    return rows


def _names(sees: Sees) -> list[str]:
    return [(part.name or "").lower() for part in sees]


def _clients(run: Setup) -> list[ClientRow]:
    counts = run.deal.class_counts(run.dataset.classes)
    return [
        ClientRow(
            client=client,
            samples=size,
            audited=run.deal.audited[client],
            class_counts=counts[client],
        )
        for client, size in run.deal.sizes.items()
    ]


def _untested(run: Setup) -> list[str]:
    study = run.study
    said = [
        f"Other adversaries than this one: {run.view.description}.",
        "Other clients than the audited "
        + ", ".join(f"client {target}" for target in study.audit.targets)
        + ".",
        "A server that tampers with the model it sends out.",
        "Attacks that train shadow models, and attacks published after this version.",
        "Reconstruction of samples, and inference of properties of a client's data.",
    ]
    if study.defense.name != "none":
        said.append("An adversary that knows of the defense and adapts to it.")
    if len(study.seeds) == 1:
        said.append("Another run of the same procedure: this is one seed.")
    if not study.figures.planted_leak:
        said.append("Whether the attacks find a planted leak (figures.planted_leak = true).")
    return said


def _content_hash(
    config: Mapping[str, object], stored: Sequence[Sequence[Stored]], figures: Sequence[Figure]
) -> str:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for rounds in stored:
        for one in rounds:
            digest.update(repr((one.measured.index, one.measured.clients)).encode())
            digest.update(one.measured.bases.numpy().tobytes())
            digest.update(json.dumps(one.notes, sort_keys=True).encode())
            for name in sorted(one.measured.signals):
                digest.update(name.encode())
                digest.update(one.measured.signals[name].contiguous().numpy().tobytes())
    for figure in figures:
        digest.update(figure.model_dump_json().encode())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pydantic")
    return {
        "fedaudit": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }


def _commit() -> str:
    """The commit of the source tree, where this is one; "+" marks uncommitted changes."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
