"""Construction of a benchmark suite: each regime is trained, attacked, and frozen."""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from fedaudit import __version__
from fedaudit.attacks import ATTACKS
from fedaudit.benchmark.croissant import write_croissant
from fedaudit.benchmark.suite import (
    ANSWERS,
    NOT_APPLICABLE,
    SIGNALS,
    SUITE_FILE,
    Answers,
    RecordingEntry,
    Regime,
    Signals,
    Suite,
    read_suite,
    stored_file,
    write_answers,
    write_signals,
    write_suite,
)
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, FedauditError, format_option, unknown_name
from fedaudit.core.files import SCORES_FILE, create_subfolder, lock_folder
from fedaudit.core.metric_names import Origin
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.extensions.references import References
from fedaudit.observe.measurements import Measurements, read_measured, stacked
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.sections import Study
from fedaudit.plan.values import read_toml, study_from
from fedaudit.results.record import Record
from fedaudit.study.build import dataset_of, resolve, run_of
from fedaudit.study.running.pool import ADDITIONAL_FOLDER, run_folder
from fedaudit.study.running.run import run_study

_REGIMES = Path(__file__).with_name("regimes")
_BUILD = "build"
"""Subfolder of a suite in which studies run. It is deleted when a regime is complete."""
_RECORDINGS = 3
"""Number of recordings of each regime."""
_REFERENCES = 4
"""Number of reference federations, for the catalogue's attacks that need them."""


def regime_names() -> list[str]:
    """Return the names of all regimes, those that need no data folder first."""
    order = ["digits", "synthetic"]
    names = sorted(path.stem for path in _REGIMES.glob("*.toml"))
    return [*order, *(name for name in names if name not in order)]


def regime_study(name: str, first_seed: int = 1) -> Study:
    """Return the study of a regime, with all attacks of the catalogue that apply.

    Args:
        name: Name of the regime.
        first_seed: First seed; the others follow it.

    Raises:
        BadInput: There is no such regime.
    """
    if name not in regime_names():
        raise unknown_name("regime", name, regime_names())
    path = _REGIMES / f"{name}.toml"
    values = read_toml(path, "the regime")
    values |= {
        "seeds": [first_seed + offset for offset in range(_RECORDINGS)],
        "references": {"count": _REFERENCES},
        "shadow": {"mode": "federation"},
    }
    study = study_from(values, source=str(path))
    attacks: dict[str, object] = {name: {} for name in ATTACKS if _applies(name, study)}
    return study_from({**values, "attacks": attacks}, source=str(path))


def _applies(attack: str, study: Study) -> bool:
    """Return True if an attack of the catalogue can run on a study, and equals no other attack."""
    if attack in NOT_APPLICABLE:
        return False
    try:
        resolve(study.model_copy(update={"attacks": {attack: {}}}))
    except FedauditError:
        return False
    return True


def build_suite(
    folder: Path,
    names: Collection[str] = (),
    *,
    seed: int = 1,
    data_dir: Path | None = None,
    workers: int = 1,
    device: torch.device = CPU,
    progress: Progress = ignore_progress,
    log: Callable[[str], None] = lambda text: None,
) -> Suite:
    """Build a benchmark suite, or add regimes to it.

    Regimes that the folder already contains are kept. A build that was stopped is continued.

    Args:
        folder: Folder of the suite.
        names: Regimes to build. If empty, all regimes are built, except those without data.
        seed: First seed of the recordings, which draws data, clients and membership.
        data_dir: Folder of data sets; by default, the folder in ``FEDAUDIT_DATA``.
        workers: Number of training processes.
        device: Device that trains and measures.
        progress: Called with (phase, done, total).
        log: Called with lines of text for the user.

    Raises:
        BadInput: There is no such regime, the data of a named regime are missing, all data are
            missing, or the folder has a suite with another seed.
    """
    studies = [regime_study(name, seed) for name in (names or regime_names())]
    create_subfolder(folder)
    lock = lock_folder(folder)
    suite = _earlier_suite(folder, seed)
    complete = {regime.name: regime for regime in suite.regimes}
    for study in studies:
        if study.name in complete:
            if complete[study.name].settings != _settings(study):
                raise BadInput(
                    f"{folder} has the regime {study.name!r} of another version "
                    f"({suite.fedaudit}); choose another folder with {format_option('out')}"
                )
            log(f"{study.name}: already in {folder}")
            continue
        if missing := _reason_without_data(study, data_dir):
            if names:
                raise BadInput(missing)
            log(f"{study.name}: left out, because its data are missing ({missing})")
            continue
        log(f"{study.name}: {study.about}")
        build = create_subfolder(folder, _BUILD, study.name)
        record = run_study(
            study, build, data_dir=data_dir, workers=workers, device=device, progress=progress
        )
        suite = _with_regime(suite, study, record, build, folder, data_dir)
        write_croissant(suite, folder)
        write_suite(suite, folder)
        shutil.rmtree(build)
    if not suite.regimes:
        raise BadInput(
            f"no regime could be built; name a data folder with {format_option('data-dir')}"
        )
    with suppress(OSError):
        # Another regime may have been stopped; its folder is kept.
        (folder / _BUILD).rmdir()
    lock.close()
    return suite


def _earlier_suite(folder: Path, seed: int) -> Suite:
    """Return the suite in a folder; an empty suite if there is none."""
    if not (folder / SUITE_FILE).exists():
        others = [path.name for path in folder.iterdir() if path.name not in (_BUILD, "lock")]
        if {*others} - {SIGNALS, ANSWERS}:
            raise BadInput(
                f"{folder} has other files, such as {sorted(others)[0]!r}; choose a new folder "
                f"with {format_option('out')}"
            )
        return Suite(seed=seed, fedaudit=__version__, regimes=[], recordings=[])
    suite = read_suite(folder)
    if suite.seed != seed:
        raise BadInput(
            f"{folder} has a benchmark with the seed {suite.seed}; choose another folder with "
            f"{format_option('out')} for the seed {seed}"
        )
    return suite


def _reason_without_data(study: Study, data_dir: Path | None) -> str:
    """Return why the data of a study cannot be loaded; empty if they can."""
    try:
        dataset_of(study.data, CLASSIFICATION, study.seeds[0], data_dir)
    except BadInput as error:
        return str(error)
    return ""


def _settings(study: Study) -> dict[str, object]:
    return study.model_dump(mode="json")


def _with_regime(
    suite: Suite,
    study: Study,
    record: Record,
    build: Path,
    folder: Path,
    data_dir: Path | None,
) -> Suite:
    """Freeze the runs of a study, and return the suite with this regime."""
    failed = dict.fromkeys(
        " ".join(filter(None, [control.control, control.attack]))
        for control in record.controls
        if control.passed is False
    )
    regime = Regime(
        name=study.name,
        about=study.about,
        settings=_settings(study),
        failed_controls=list(failed),
    )
    recordings = list(_recordings(study, build, folder, data_dir))
    return suite.model_copy(
        update={
            "commit": record.environment.commit,
            "regimes": [*suite.regimes, regime],
            "recordings": [*suite.recordings, *recordings],
        }
    )


def _recordings(
    study: Study, build: Path, folder: Path, data_dir: Path | None
) -> Iterator[RecordingEntry]:
    """Write the signals and answers of each run of a study."""
    for name in (SIGNALS, ANSWERS):
        create_subfolder(folder, name)
    all_scores = read_scores(build / SCORES_FILE)
    for seed in study.seeds:
        for target in study.audit.targets:
            run = run_folder(build, seed)
            name = _recording_name(study.name, seed, target, study.audit.targets)
            audit, _ = read_tensors(run / "audit.safetensors")
            scores = all_scores[seed, target]
            # Rows of signals are the audited samples, followed by those of source inference.
            positions = _positions(audit["ids"].numpy(), scores.ids)
            measured = stacked((stored.measured for stored in read_measured(run)), about=[target])
            references = _references(study, seed, build, data_dir)
            signals = Signals(target, measured, references).in_order(positions)
            answers = Answers(scores.origin == Origin.MEMBER, scores.by_attack)
            write_signals(signals, folder / SIGNALS / f"{name}.safetensors")
            write_answers(answers, folder / ANSWERS / f"{name}.safetensors")
            first = next(iter(signals.measured.values()))
            yield RecordingEntry(
                name=name,
                regime=study.name,
                seed=seed,
                target=target,
                clients=len(first.clients),
                rounds=len(first.rounds),
                samples=signals.samples,
                signals=stored_file(folder, f"{SIGNALS}/{name}.safetensors"),
                answers=stored_file(folder, f"{ANSWERS}/{name}.safetensors"),
            )


def _recording_name(regime: str, seed: int, target: int, targets: Sequence[int]) -> str:
    return f"{regime}-{seed}" + f"-client-{target}" * (len(targets) > 1)


def _references(
    study: Study, seed: int, build: Path, data_dir: Path | None
) -> list[dict[str, Measurements]]:
    """Return the measurements of the reference federations of a run."""
    extension = run_of(resolve(study), seed, data_dir).extension(References)
    assert extension is not None
    audited_client = study.audit.targets[0]
    assert extension.plan.representatives.get(audited_client, audited_client) == audited_client
    measured = []
    for federation in extension.federations:
        folder = run_folder(build / ADDITIONAL_FOLDER, federation.seed)
        signals = stacked(stored.measured for stored in read_measured(folder))
        # Tuning samples follow the audited ones.
        audited = slice(0, extension.attacked)
        measured.append({name: m.on_samples(audited) for name, m in signals.items()})
    return measured


def _positions(ids: np.ndarray, of_samples: np.ndarray) -> np.ndarray:
    """Return the position of each sample among the audited samples."""
    order = np.argsort(ids)
    positions: np.ndarray = order[np.searchsorted(ids, of_samples, sorter=order)]
    return positions
