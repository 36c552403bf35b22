"""Stored measurements of the uploads that a guard sent."""

from collections.abc import Sequence
from pathlib import Path

from fedaudit.core.errors import Damaged
from fedaudit.core.files import create_subfolder, path_without_links
from fedaudit.core.values import ClientId
from fedaudit.live.decisions import DECISIONS_FILE, Decision, missing_measurements, outdated_log
from fedaudit.live.measuring import Measurement
from fedaudit.live.recording import append_round, round_entry
from fedaudit.observe.measurements import MeasuredRound, measured_rounds_in, write_measured
from fedaudit.observe.tensors import round_paths

_REPEATED = "repeated"
"""Folder for further sent uploads of a round, since a recording has only one per round."""


def write_repeated(folder: Path, version: int, measurement: Measurement) -> Path:
    """Write the measurement of a further upload of a round, and return the folder."""
    version_folder = create_subfolder(folder, _REPEATED, str(version))
    write_measured(version_folder, measurement.measured, measurement.notes)
    return version_folder


def discard_undecided(folder: Path, decisions: Sequence[Decision], client: ClientId) -> None:
    """Delete the measurement without a decision that a killed process left.

    Raises:
        Damaged: The log of decisions does not match the measurements.
    """
    keys = [decision.key for decision in decisions if decision.was_sent]
    sent = {*keys}
    if len(sent) < len(keys):
        raise Damaged(f"{folder / DECISIONS_FILE} lists an upload twice; restore it from a copy")
    stored = dict[tuple[int, int], Path]()
    for version, version_folder in _folders_by_version(folder, decisions):
        files = round_paths(version_folder / "measured", ".safetensors")
        stored |= {(index, version): path for index, path in files}
    missing = sorted(sent - stored.keys())
    if missing:
        raise missing_measurements(folder, missing[0][0])
    undecided = stored.keys() - sent
    # A killed process leaves at most one such measurement, because a decision is stored before the
    # next upload is measured.
    if len(undecided) > 1:
        raise outdated_log(folder)
    for index, version in undecided:
        stored[index, version].unlink()
        if not version:
            note = "the process ended before a decision, so nothing was sent"
            append_round(round_entry(index, [client], (), 0, note=note), folder)


def measured_uploads(
    folder: Path, decisions: Sequence[Decision]
) -> dict[tuple[int, int], MeasuredRound]:
    """Return the measurements of all sent uploads, by round and version."""
    return {
        (stored.measured.index, version): stored.measured
        for version, version_folder in _folders_by_version(folder, decisions)
        for stored in measured_rounds_in(version_folder)
    }


def _folders_by_version(folder: Path, decisions: Sequence[Decision]) -> list[tuple[int, Path]]:
    """Return the version numbers of uploads of a round, each with its folder of measurements.

    The list has one version more than the decisions, since a killed process may have written a
    measurement without a decision.
    """
    last_version = max((decision.version for decision in decisions), default=0) + 1
    repeated = [
        (version, path_without_links(folder, _REPEATED, str(version)))
        for version in range(1, last_version + 1)
    ]
    return [(0, folder), *repeated]
