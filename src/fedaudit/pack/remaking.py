"""The record of a study's pack, made again from what its run has measured."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from fedaudit.errors import BadInput
from fedaudit.games.record import GameRecord
from fedaudit.live.attack import attack_recording
from fedaudit.pack.suppressing import suppressed
from fedaudit.report.grid import shortened
from fedaudit.study.again import attack_again
from fedaudit.study.folder import recorded_study
from fedaudit.study.older import completed
from fedaudit.study.record import Record

_OF_THE_MAKING = {"environment", "content_hash"}
"""Fields of a record that do not follow from its recording, or are compared by themselves."""
_OF_A_RECORDER = {"name", "config"}
"""Those that say which of several recordings of one federation it was."""
_NAMES = ("attack", "metric", "control", "contrast", "target", "client", "group", "seed", "defense")


def remade(
    record: Record | GameRecord,
    recording: Path,
    data_dir: Path | None = None,
    *,
    smallest_group: int = 0,
    counts: Mapping[str, int] | None = None,
    trust: bool = False,
) -> Iterator[str]:
    """What is wrong with a packed record in the light of its run; nothing is trained again.

    Everything that follows from the run is made again and compared: figures, controls, curves,
    what is said of clients, models and sources, and the content hash.

    Args:
        record: As it is packed.
        recording: The folder of the study's run, or of a live recording.
        data_dir: Folder with data sets.
        smallest_group: Groups with fewer samples are suppressed in the pack.
        counts: How many entries the pack says were; not compared if None.
        trust: Import code that the recording names.

    Yields:
        Each part of the record that is another, with the first entry in which it is.

    Raises:
        BadInput: The record is of games, whose content hash needs no recording.
        Refusal: The folder is no recording, or is damaged.
    """
    if isinstance(record, GameRecord):
        raise BadInput("a record of games holds all that its content hash is over; leave it out")
    with TemporaryDirectory() as folder:
        whole = _attacked(record, recording, Path(folder) / "again", data_dir, trust)
    # By way of its text, as the pack has it.
    again = Record.model_validate_json(completed(whole).model_dump_json())
    made, hidden = suppressed(again, smallest_group)
    apart = _OF_THE_MAKING | (_OF_A_RECORDER if record.watched else set())
    for field in Record.model_fields:
        if field not in apart and getattr(record, field) != getattr(made, field):
            yield _difference(field, getattr(record, field), getattr(made, field))
    if made.content_hash != record.content_hash:
        yield (
            "the record's content hash is not that of what the run has measured; on another "
            "machine or with other versions, last digits may differ"
        )
    for name, count in hidden.items():
        if counts is not None and counts.get(name) != count:
            yield (
                f"the manifest says that {counts.get(name, 0)} of {name} were suppressed, and of "
                f"what the run gives it is {count}"
            )


def _difference(field: str, packed: object, made: object) -> str:
    """One sentence on a field of the record that is not what the run gives."""
    if not (isinstance(packed, list) and isinstance(made, list)):
        return f"the record's {field} is not what the run gives"
    if len(packed) != len(made):
        return f"the record has {len(packed)} {field}, and the run gives {len(made)}"
    pairs = [(one, other) for one, other in zip(packed, made, strict=True) if one != other]
    one, other = pairs[0]
    said = f"{len(pairs)} of {len(packed)} {field} of the record are not what the run gives"
    if not (isinstance(one, BaseModel) and isinstance(other, BaseModel)):
        return said
    # Of a pack, which anybody may have written: shortened, and printed as plain text.
    who = ", ".join(str(getattr(other, name)) for name in _NAMES if getattr(other, name, ""))
    what = next(f for f in type(one).model_fields if getattr(one, f) != getattr(other, f, None))
    values = shortened(f"{getattr(one, what)!r} instead of {getattr(other, what)!r}", 120)
    return f"{said}, such as that of {shortened(who, 80)}: {what} is {values}"


def _attacked(
    record: Record, recording: Path, out: Path, data_dir: Path | None, trust: bool
) -> Record:
    """A record of the same settings, since the hash is over these too."""
    attacks, figures = (_table(record.config.get(name)) for name in ("attacks", "figures"))
    if record.watched:
        # Attacks that the recording refuses are told of only where none is named.
        names = [] if any(a.status == "refused" for a in record.attacks) else _named(record)
        return attack_recording(recording, names, out, figures=figures, trust=trust)
    same = set(recorded_study(recording).attacks) == set(attacks)
    changes = {f"figures.{name}": value for name, value in figures.items()}
    return attack_again(
        recording, [] if same else list(attacks), out, data_dir, changes, trust=trust
    )


def _table(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


def _named(record: Record) -> list[str]:
    return [attack.name for attack in record.attacks]
