"""Epsilon of a federation after each round, and the number of rounds until a target is reached."""

import json
import textwrap
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import accumulate
from math import ceil, isfinite
from os import PathLike
from pathlib import Path

from fedaudit.core.arguments import check_arguments
from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput, format_option
from fedaudit.core.files import record_at
from fedaudit.plan.values import read_toml, settings_from, study_from
from fedaudit.privacy_budget.losses import Losses
from fedaudit.privacy_budget.setup import MAX_ROUNDS, UNITS, PrivacySetup, Unit
from fedaudit.privacy_budget.studies import (
    MeasuredBound,
    measured_bounds,
    setup_of_record,
    setup_of_study,
)
from fedaudit.results.read import read_record
from fedaudit.results.record import Record

_SHORT_TABLE = 12
"""Largest number of rounds that all have a row by default."""

_WIDTH = 80


class BudgetVerdict(StrEnum):
    """Comparison of the epsilon of all rounds with the target."""

    WITHIN = "within the target"
    ABOVE = "above the target"
    NO_TARGET = "no target"


EXIT_CODES = {BudgetVerdict.WITHIN: 0, BudgetVerdict.ABOVE: 1, BudgetVerdict.NO_TARGET: 0}
"""Exit codes of the command ``budget``, with the same meaning as those of the gate."""

_ADJACENCY_DESCRIPTIONS = {
    "add-or-remove": "one {unit} is added or removed",
    "zero-out": "the contributions of one {unit} are replaced by zero",
    "replace": "one {unit} is replaced by another",
}


@dataclass(frozen=True)
class BudgetRow:
    """Epsilon after some rounds, for each unit of privacy.

    Attributes:
        round: Number of rounds so far.
        phase: Number of the phase of the last round, from 1.
        sample: Epsilon of one sample.
        person: Epsilon of one person.
        client: Epsilon of one client.
    """

    round: int
    phase: int
    sample: float
    person: float
    client: float


@dataclass(frozen=True, repr=False)
class Budget:
    """Epsilon of a federation over all rounds; printed as a table.

    Attributes:
        setup: The set-up.
        unit: Unit of privacy to which the target applies.
        target: Largest epsilon that is accepted; None for no limit.
        rows: Epsilon after some rounds. The last row is after all rounds.
        last_round: Last round after which epsilon is within the target. It may be later than the
            last phase, whose settings then continue. None without a target, or if a million rounds
            stay within the target.
        measured: Lower bounds that attacks measured, if a record was given.

    Examples:
        >>> import fedaudit as fa
        >>> phase = {
        ...     "rounds": 100, "protects": "client", "clip": 1.0, "noise_multiplier": 10.0
        ... }
        >>> result = fa.budget({"clients": 5000, "delta": 1e-5, "target": 5.0, "phase": [phase]})
        >>> round(result.epsilon, 3), result.rounds_left, str(result.verdict)
        (4.377, 25, 'within the target')
    """

    setup: PrivacySetup
    unit: Unit
    target: float | None
    rows: tuple[BudgetRow, ...]
    last_round: int | None
    measured: tuple[MeasuredBound, ...] = ()

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    @property
    def epsilon(self) -> float:
        """Epsilon of ``unit`` after all rounds."""
        return float(getattr(self.rows[-1], self.unit))

    @property
    def verdict(self) -> BudgetVerdict:
        """Comparison of the epsilon of all rounds with the target."""
        if self.target is None:
            return BudgetVerdict.NO_TARGET
        return BudgetVerdict.WITHIN if self.epsilon <= self.target else BudgetVerdict.ABOVE

    @property
    def rounds_left(self) -> int | None:
        """Number of further rounds within the target; 0 if the target is already exceeded.

        These rounds have the settings of the last phase, and the unit takes part in each of them.
        None if ``last_round`` is None.
        """
        if self.last_round is None:
            return None
        return max(0, self.last_round - self.setup.rounds)

    def to_json(self) -> str:
        """Return the budget as JSON, with null for an infinite epsilon."""
        document = {
            "format": "fedaudit-budget",
            "name": self.setup.name,
            "verdict": str(self.verdict),
            "unit": self.unit,
            "epsilon": _or_null(self.epsilon),
            "delta": self.setup.delta,
            "adjacency": self.setup.adjacency,
            "target": self.target,
            "last_round": self.last_round,
            "rounds_left": self.rounds_left,
            "rows": [
                asdict(row) | {unit: _or_null(getattr(row, unit)) for unit in UNITS}
                for row in self.rows
            ],
            "measured": [asdict(bound) for bound in self.measured],
            "setup": self.setup.model_dump(mode="json", exclude_defaults=True),
        }
        return json.dumps(document, indent=1)

    @property
    def headline(self) -> str:
        """Epsilon after all rounds in words, compared with the target."""
        setup = self.setup
        head = (
            f"{setup.name}: epsilon {self.rounded(self.epsilon)} for one {self.unit} after "
            f"{setup.rounds:,} rounds, at delta {setup.delta:g}"
        )
        return head if self.target is None else f"{head} ({self.verdict} of {self.target:g})"

    @staticmethod
    def rounded(epsilon: float) -> str:
        """Format an upper bound; above 1,000 it gives no protection, and has no digits."""
        return f"{ceil(epsilon * 1000 - 1e-6) / 1000:.3f}" if epsilon <= 1000 else "> 1,000"

    def __str__(self) -> str:
        lines = [*_wrapped(f"{self.headline}."), ""]
        lines.append(f"{'round':>9}  {'phase':>5}" + "".join(f"{unit:>12}" for unit in UNITS))
        for row in self.rows:
            cells = "".join(f"{self.rounded(getattr(row, unit)):>12}" for unit in UNITS)
            lines.append(f"{row.round:>9,}  {row.phase:>5}{cells}")
        lines.append("")
        for sentence in self.remarks:
            lines += _wrapped(sentence)
        return "\n".join(lines)

    @property
    def remarks(self) -> Sequence[str]:
        """Sentences on the rounds left, the adjacency, and what attacks measured."""
        setup = self.setup
        remarks = list[str]()
        if self.target is not None:
            remarks.append(self._rounds_sentence(self.target))
        adjacency = _ADJACENCY_DESCRIPTIONS[setup.adjacency].format(unit=setup.phase[0].protects)
        remarks.append(
            f"Adjacency: {adjacency}. A person has at most "
            f"{_count(setup.person_samples, 'sample')}, at most at "
            f"{_count(setup.person_clients, 'client')}."
        )
        protects_clients = any(phase.protects == "client" for phase in setup.phase)
        if protects_clients and setup.adjacency != "replace":
            remarks.append(
                "A change of one sample or person replaces the update of its client, which costs "
                "more than to remove it."
            )
        if any(setup.rate(phase) < 1 for phase in setup.phase):
            remarks.append(
                "Amplification by random sampling is included: this epsilon does not hold against "
                "an adversary that learns who takes part in a round, or which samples are in a "
                "batch."
            )
        for bound in self.measured:
            rounded_down = int(bound.value * 1000) / 1000
            remarks.append(
                f"Measured for one {bound.unit}: epsilon at least {rounded_down:.3f} "
                f"({bound.metric}; {bound.method})."
            )
            if bound.value > getattr(self.rows[-1], bound.unit):
                remarks.append(
                    f"{bound.metric} is above the epsilon of this set-up: if its assumptions "
                    "hold, the mechanism is not the one that the set-up describes."
                )
        return remarks

    def _rounds_sentence(self, target: float) -> str:
        limit = f"the target of {target:g}"
        if self.last_round is None:
            return f"Rounds left: a million further rounds stay within {limit}."
        if self.last_round == 0:
            return f"Epsilon is above {limit} after the first round."
        if self.verdict is BudgetVerdict.ABOVE:
            return (
                f"Epsilon is within {limit} up to round {self.last_round:,} of "
                f"{self.setup.rounds:,}."
            )
        is_capped = self.setup.phase[-1].participations is not None
        if is_capped:
            condition = "in which a client takes part"
        else:
            condition = "with the settings of the last phase"
        return f"Rounds left: {self.rounds_left:,} more {condition} stay within {limit}."


def _or_null(epsilon: float) -> float | None:
    """Return the number, or None if it is infinite, which JSON cannot represent."""
    return epsilon if isfinite(epsilon) else None


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ")


@check_arguments
def budget(
    setup: PrivacySetup | Mapping[str, object] | str | PathLike[str],
    *,
    target: float | None = None,
    unit: Unit | None = None,
    delta: float | None = None,
    every: int | None = None,
    record: str | PathLike[str] | None = None,
    data_dir: str | PathLike[str] | None = None,
) -> Budget:
    """Compute epsilon over all rounds of a federation, from its privacy set-up.

    Args:
        setup: The set-up: the path of a TOML file, or its settings; see :class:`PrivacySetup`. Or
            the path of a study file whose audited clients use client-dp or dp-sgd, or of the
            record of such a study.
        target: Largest epsilon that is accepted; that of the set-up by default.
        unit: Unit of privacy to which the target applies: "sample", "person" or "client"; that of
            the set-up by default.
        delta: Failure probability; that of the set-up by default.
        every: Number of rounds between two rows. By default, there is a row for each of up to
            twelve rounds, and otherwise about ten rows.
        record: Path of a record whose measured lower bounds are printed below the epsilon; by
            default that of ``setup``, if this is a record.
        data_dir: Folder of data sets, for a study file; by default ``$FEDAUDIT_DATA``.

    Returns:
        Epsilon after some rounds for each unit, and the rounds that are left.

    Raises:
        BadInput: The file is not TOML, a setting is wrong, the steps of a phase give no
            differential privacy, or dp-accounting is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> phase = {
        ...     "rounds": 200, "protects": "client", "clip": 1.0, "noise_multiplier": 1.0,
        ...     "sampling": "poisson", "clients_per_round": 50,
        ... }
        >>> result = fa.budget({"clients": 5000, "delta": 1e-5, "phase": [phase]}, every=200)
        >>> round(result.epsilon, 2)
        0.91

    Source: Koskela, Jälkö and Honkela 2020 (privacy loss distributions); Doroshenko et al. 2022.
    """
    overrides = {"target": target, "unit": unit, "delta": delta}
    resolved, measured_record = _resolve(setup, overrides, data_dir)
    if record is not None:
        measured_record = read_record(record_at(Path(record)))
    if every is not None and every < 1:
        raise BadInput(f"{format_option('every')} is a number of rounds of at least 1, got {every}")
    losses = {unit: Losses(resolved, unit) for unit in UNITS}
    rows = tuple(
        BudgetRow(
            round=rounds,
            phase=_phase_of(resolved, rounds),
            **{unit: losses[unit].epsilon(rounds) for unit in UNITS},
        )
        for rounds in _rounds_of_rows(resolved, every)
    )
    last_round = None
    if resolved.target is not None:
        last_round = _last_round(losses[resolved.protected], resolved.rounds, resolved.target)
    return Budget(
        setup=resolved,
        unit=resolved.protected,
        target=resolved.target,
        rows=rows,
        last_round=last_round,
        measured=() if measured_record is None else measured_bounds(measured_record),
    )


def _resolve(
    setup: PrivacySetup | Mapping[str, object] | str | PathLike[str],
    overrides: Mapping[str, object],
    data_dir: str | PathLike[str] | None,
) -> tuple[PrivacySetup, Record | None]:
    """Return the set-up with the overrides that are not None, and the record that contains it.

    The record is None if the set-up is not read from one.
    """
    source, record = "the privacy set-up", None
    values: dict[str, object]
    if isinstance(setup, PrivacySetup):
        values = setup.model_dump(exclude_unset=True)
    elif isinstance(setup, Mapping):
        values = dict(setup)
    else:
        path = Path(setup)
        source = str(path)
        if path.is_dir() or path.suffix == ".json":
            record = read_record(record_at(path))
            values = setup_of_record(record)
        else:
            values = read_toml(path, "the privacy set-up")
            if "phase" not in values and _has_tables_of_study(values):
                values = _setup_of_study_file(values, source, data_dir)
    values.update({name: value for name, value in overrides.items() if value is not None})
    return settings_from(values, PrivacySetup, source=source), record


def _has_tables_of_study(values: Mapping[str, object]) -> bool:
    # Imported here, since the settings of studies import torch.
    from fedaudit.plan.sections import Study

    return bool(values.keys() & (Study.model_fields.keys() - {"name"}))


def _setup_of_study_file(
    values: dict[str, object], source: str, data_dir: str | PathLike[str] | None
) -> dict[str, object]:
    """Return the set-up of a study file. The data set is loaded for the sizes of its clients."""
    # Imported here, since a set-up needs no training.
    from fedaudit.study.build import build_setup as run_of_study

    study = study_from(values, source=source)
    run = run_of_study(study, study.seeds[0], None if data_dir is None else Path(data_dir))
    return setup_of_study(run.study, run.assignment.sizes)


def _rounds_of_rows(setup: PrivacySetup, every: int | None) -> list[int]:
    """Return the rounds that have a row: multiples of a step, and the last of each phase."""
    if every is None:
        every = 1 if setup.rounds <= _SHORT_TABLE else ceil(setup.rounds / 10)
    multiples = range(every, setup.rounds + 1, every)
    return sorted({1, *multiples, *_last_rounds(setup)})


def _last_rounds(setup: PrivacySetup) -> list[int]:
    """Return the number of the last round of each phase."""
    return list(accumulate(phase.rounds for phase in setup.phase))


def _phase_of(setup: PrivacySetup, rounds: int) -> int:
    """Return the number of the phase of a round, from 1."""
    return 1 + bisect_left(_last_rounds(setup), rounds)


def _last_round(losses: Losses, planned: int, target: float) -> int | None:
    """Return the last round within a target; None if ``MAX_ROUNDS`` rounds are within it."""
    # Invariant: epsilon is within the target after round ``low``.
    low, high = 0, planned
    while losses.epsilon(high) <= target:
        if high >= MAX_ROUNDS:
            return None
        low, high = high, min(2 * high, MAX_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        if losses.epsilon(middle) <= target:
            low = middle
        else:
            high = middle
    return low
