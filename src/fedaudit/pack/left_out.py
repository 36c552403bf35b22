"""Attacks and settings of figures of a packed record, compared with those of its run.

Figures can be right and still hide a leak, if whoever made the pack left out the attack that finds
it. The folder of the run and the receiver's policy say which attacks were expected.
"""

from pathlib import Path

from fedaudit.gate.policy import Policy
from fedaudit.live.recording import read_recording
from fedaudit.pack.choices import (
    Findings,
    as_table,
    asked_attacks,
    attacks_of,
    change_at,
    differing_paths,
    listed,
)
from fedaudit.results.record import Record
from fedaudit.study.running.folder import recorded_study
from fedaudit.study.settings.sections import FiguresSection

_ADD_EVIDENCE = frozenset({"planted_leak", "blind_classifier"})
"""Settings of figures that add a control if they are turned on."""


def compare_choices(record: Record, recording: Path, policy: Policy | None) -> Findings:
    """Compare attacks and settings of figures with those that the run was made for.

    Args:
        record: As it is packed.
        recording: Folder of the study's run, or of a live recording.
        policy: The receiver's policy, whose attacks are enough if it names them; None without one.
    """
    study = None if record.watched else recorded_study(recording)
    planned = set(read_recording(recording).attacks if study is None else study.attacks)
    shown = attacks_of(record)
    required = planned if policy is None else (asked_attacks(policy) or planned)
    problems, unchecked = [], []
    if missing := sorted((required & planned) - shown):
        problems.append(f"the record leaves out attacks of the run: {listed(missing)}")
    if left := sorted(planned - required - shown):
        unchecked.append(
            f"attacks of the run that the record leaves out and your policy does not ask for: "
            f"{listed(left)}"
        )
    if added := sorted(shown - planned):
        unchecked.append(
            f"whether attacks were chosen after a look at the figures: the run does not name "
            f"{listed(added)}, and tests are corrected over all"
        )
    figures = FiguresSection() if study is None else study.figures
    expected = figures.model_dump(mode="json")
    given = expected | as_table(record.config.get("figures"))
    changes = [
        change_at(path, given, expected, "figures")
        for path in differing_paths(given, expected)
        if not (path[0] in _ADD_EVIDENCE and given.get(path[0]) is True)
    ]
    if changes and study is not None:
        problems.append(f"settings of figures are not those of the run: {listed(changes)}")
    elif changes:
        unchecked.append(
            "whether settings of figures were chosen after a look at them, as a recording states "
            f"none: {listed(changes)}"
        )
    if record.nobody_is_a_member and not figures.nobody_is_a_member:
        problems.append("the record calls unseen samples members, so that it can show no leak")
    checked = [] if problems else ["attacks and settings of figures are those of the run"]
    return Findings(problems, [] if unchecked else checked, unchecked)
