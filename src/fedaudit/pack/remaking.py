"""The content hash of a study's record, made again from what its run has measured."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from fedaudit.errors import BadInput
from fedaudit.games.record import GameRecord
from fedaudit.live.attack import attack_recording
from fedaudit.study.again import attack_again
from fedaudit.study.folder import recorded_study
from fedaudit.study.record import Record


def remade(
    record: Record | GameRecord,
    recording: Path,
    data_dir: Path | None = None,
    *,
    trust: bool = False,
) -> Iterator[str]:
    """What is wrong with a packed record in the light of its run; nothing is trained again.

    Args:
        record: As it is packed.
        recording: The folder of the study's run, or of a live recording.
        data_dir: Folder with data sets.
        trust: Import code that the recording names.

    Yields:
        That the content hash is another one.

    Raises:
        BadInput: The record is of games, whose content hash needs no recording.
        Refusal: The folder is no recording, or is damaged.
    """
    if isinstance(record, GameRecord):
        raise BadInput("a record of games holds all that its content hash is over; leave it out")
    with TemporaryDirectory() as folder:
        made = _attacked(record, recording, Path(folder) / "again", data_dir, trust)
    if made.content_hash != record.content_hash:
        yield (
            "the record's content hash is not that of what the run has measured; on another "
            "machine or with other versions, last digits may differ"
        )


def _attacked(
    record: Record, recording: Path, out: Path, data_dir: Path | None, trust: bool
) -> Record:
    """A record of the same settings, since the hash is over these too."""
    attacks, figures = (_table(record.config.get(name)) for name in ("attacks", "figures"))
    if record.watched:
        return attack_recording(recording, list(attacks), out, figures=figures, trust=trust)
    same = set(recorded_study(recording).attacks) == set(attacks)
    changes = {f"figures.{name}": value for name, value in figures.items()}
    return attack_again(
        recording, [] if same else list(attacks), out, data_dir, changes, trust=trust
    )


def _table(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}
