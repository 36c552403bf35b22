"""Leaderboard: AUC and TPR of attacks with confidence limits, and which attacks differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Literal

from jaxtyping import Bool, Float
from numpy import ndarray
from pydantic import Field

from fedaudit.core.files import write_atomically
from fedaudit.metrics import (
    EstimateWithLimits,
    auc_interval,
    compare_auc,
    mean_limits_by_p_values,
    mean_limits_if_independent,
    nonmember_shortage,
    tpr_at_fpr,
    tpr_limits_function,
)
from fedaudit.results.fields import Count, RecordPart
from fedaudit.results.text import sealed_json

FPRS = (0.01, 0.001)
"""False-positive rates at which the TPR is computed."""
ERROR = 0.05
"""Probability that any two attacks of equal AUC count as different."""

Outcome = Literal["better", "not separable", "worse"]


class Figure(RecordPart):
    """Mean over the recordings of a regime, with 95 % confidence limits for these recordings."""

    value: float
    low: float
    high: float


class Entry(RecordPart):
    """One attack on one regime.

    Attributes:
        tpr: TPR by false-positive rate, for rates with enough non-members.
        difference: AUC of the scored attack minus the AUC of this one, paired by samples; None
            without a scored attack, and for the scored attack itself.
        outcome: Whether the scored attack is better or worse than this one.
        best_rank: Smallest rank that the data allow: 1 plus the number of better attacks. None if
            the ranks of this attack were not computed.
        worst_rank: Largest rank that the data allow.
    """

    attack: str
    auc: Figure
    tpr: dict[str, Figure]
    difference: Figure | None = None
    outcome: Outcome | None = None
    best_rank: Count | None = None
    worst_rank: Count | None = None


class RegimeBoard(RecordPart):
    """All attacks on one regime, the largest AUC first.

    Attributes:
        recordings: Number of recordings.
        members: Number of members, in all recordings together.
        non_members: Number of non-members, in all recordings together.
        shortage: Why there is no TPR at a false-positive rate, by rate.
    """

    regime: str
    about: str
    recordings: Count
    members: Count
    non_members: Count
    shortage: dict[str, str] = Field(default_factory=dict)
    entries: list[Entry]

    def of(self, attack: str) -> Entry:
        """Return the entry of an attack."""
        return next(entry for entry in self.entries if entry.attack == attack)


class Control(RecordPart):
    """Check of the scored attack with a known result.

    Attributes:
        result: What was found.
    """

    name: str
    passed: bool
    result: str


class Leaderboard(RecordPart):
    """Results of all attacks on a suite.

    Attributes:
        attack: Name of the scored attack; empty if only the catalogue's attacks are compared.
        comparisons: Number of comparisons that share the error probability of 5 %.
        seed: First seed of the suite.
        suite: SHA-256 of the file ``suite.json``, which contains the digests of all other files.
        code: SHA-256 of the file of the scored attack; empty if it is not a file.
        warnings: Controls of the recordings that failed.
    """

    format: Literal["fedaudit-leaderboard"] = "fedaudit-leaderboard"
    version: Literal[1] = 1
    attack: str = ""
    comparisons: Count
    seed: Count
    suite: str
    fedaudit: str
    code: str = ""
    regimes: list[RegimeBoard]
    controls: list[Control] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ScoredRecording:
    """Scores of all attacks on a recording.

    Attributes:
        is_member: Whether the audited client trained on each sample.
        by_attack: Scores by attack, larger for likelier members.
    """

    is_member: Bool[ndarray, " samples"]
    by_attack: Mapping[str, Float[ndarray, " samples"]]


Recordings = Sequence[ScoredRecording]


def regime_board(
    name: str,
    about: str,
    recordings: Recordings,
    *,
    attack: str = "",
    comparisons: int,
    step: Callable[[], None] = lambda: None,
) -> RegimeBoard:
    """Compute the leaderboard of a regime.

    Args:
        name: Name of the regime.
        about: Description of the regime.
        recordings: Scores of the same attacks on each recording.
        attack: The scored attack, with which all others are compared. If empty, all pairs of
            attacks are compared.
        comparisons: Number of comparisons over all regimes, among which the error probability is
            divided (Bonferroni's correction).
        step: Called after each attack or comparison.

    Source: for ranks, Mogstad, Romano, Shaikh and Wilhelm 2024, "Inference for ranks": an attack's
        rank lies between 1 plus the number of better attacks and the number of attacks minus the
        number of worse ones, if all comparisons are simultaneous.
    """
    attacks = list(recordings[0].by_attack)
    shortage = {f"{fpr:g}": reason for fpr in FPRS if (reason := _shortage(fpr, recordings))}
    pairs = (
        [(attack, other) for other in attacks if other != attack]
        if attack
        else list(combinations(attacks, 2))
    )
    better = dict[tuple[str, str], bool]()
    for first, second in pairs:
        limits = _difference(recordings, first, second, 1 - ERROR / comparisons)
        better[first, second], better[second, first] = limits.low > 0, limits.high < 0
        step()
    entries = []
    for each in attacks:
        entry = Entry(attack=each, auc=_auc(recordings, each), tpr=_tprs(recordings, each))
        if attack and each != attack:
            outcome: Outcome = "not separable"
            if better[attack, each] or better[each, attack]:
                outcome = "better" if better[attack, each] else "worse"
            difference = _difference(recordings, attack, each, 0.95)
            entry = entry.model_copy(update={"difference": difference, "outcome": outcome})
        if not attack or each == attack:
            others = [other for other in attacks if other != each]
            entry = entry.model_copy(
                update={
                    "best_rank": 1 + sum(better[other, each] for other in others),
                    "worst_rank": len(attacks) - sum(better[each, other] for other in others),
                }
            )
        entries.append(entry)
        step()
    return RegimeBoard(
        regime=name,
        about=about,
        recordings=len(recordings),
        members=sum(int(recording.is_member.sum()) for recording in recordings),
        non_members=sum(int((~recording.is_member).sum()) for recording in recordings),
        shortage=shortage,
        entries=sorted(entries, key=lambda entry: -entry.auc.value),
    )


def n_comparisons(attacks: int, regimes: int, *, scored: bool) -> int:
    """Return the number of comparisons of a leaderboard.

    Args:
        attacks: Number of attacks, including a scored one.
        regimes: Number of regimes.
        scored: Whether only one attack is compared with all others.
    """
    return regimes * (attacks - 1 if scored else attacks * (attacks - 1) // 2)


def _shortage(fpr: float, recordings: Recordings) -> str:
    fewest = min(int((~recording.is_member).sum()) for recording in recordings)
    return nonmember_shortage(fpr, fewest) or ""


def _auc(recordings: Recordings, attack: str) -> Figure:
    runs = [auc_interval(each.by_attack[attack], each.is_member) for each in recordings]
    return _mean([EstimateWithLimits(run.value, run.low, run.high) for run in runs])


def _difference(recordings: Recordings, first: str, second: str, confidence: float) -> Figure:
    runs = [
        compare_auc(
            each.by_attack[first],
            each.by_attack[second],
            is_member=each.is_member,
            confidence=confidence,
        )
        for each in recordings
    ]
    return _mean([EstimateWithLimits(run.value, run.low, run.high) for run in runs])


def _mean(runs: Sequence[EstimateWithLimits[float]]) -> Figure:
    low, high = mean_limits_if_independent(runs)
    return Figure(value=fmean(run.value for run in runs), low=low, high=high)


def _tprs(recordings: Recordings, attack: str) -> dict[str, Figure]:
    figures = {}
    for fpr in FPRS:
        if _shortage(fpr, recordings):
            continue
        scores = [(each.by_attack[attack], each.is_member) for each in recordings]
        value = fmean(tpr_at_fpr(*pair, fpr).tpr for pair in scores)
        low, high = mean_limits_by_p_values([tpr_limits_function(*pair, fpr) for pair in scores])
        figures[f"{fpr:g}"] = Figure(value=value, low=min(low, value), high=max(high, value))
    return figures


def leaderboard_text(board: Leaderboard) -> str:
    """Return a leaderboard as JSON."""
    return sealed_json(board.model_dump(mode="json"))


def write_leaderboard(board: Leaderboard, path: Path) -> None:
    """Write a leaderboard as JSON."""
    write_atomically(path, leaderboard_text(board))
