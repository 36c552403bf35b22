"""Keeps the records of a study that was run with all its variants, small enough for a repository.

python results/keep.py runs/cofedmid-mnist [NAME]
python results/keep.py games/ami-digits
python results/keep.py runs/ladder-letters --ladder

Takes every variant's record.json below the folder into the archive of the study's name (or NAME)
beside this file. The study's own record stays whole if it is under 700 kB; of it else, and of
the variants, only what `fedaudit compare` and the pages of results and claims use is kept: figures,
controls, utility, usage and the loss by round, nothing else that is drawn. A record of games is
kept unchanged. Of a federation of the leak ladder (--ladder), only AUCs and rates over the seeds,
sources, utility and the loss by round are kept.
"""

import subprocess
import sys
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.files import RECORD_FILE
from fedaudit.results.estimate import Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Environment, Record, record_json

sys.path.insert(0, str(Path(__file__).parents[1]))

from results.archives import archive, unpacked

ROOT = Path(__file__).parents[1]
DRAWN = ("curves", "histograms", "exposed")
MOST_BYTES = 700_000


def keep(runs: Path, name: str, *, ladder: bool = False) -> int:
    """Adds all records below a folder to the archive of a study, in place of those of their names.

    Returns:
        How many there were.

    Raises:
        BadInput: A record does not say which commit made it, or there were uncommitted changes.
    """
    records = {path.name: path.read_bytes() for path in (unpacked() / name).glob("*.json")}
    own = runs / RECORD_FILE
    if own.is_file() and read_record(own).kind == "games":
        found = {f"{name}.json": own}
    else:
        found = {f"{path.parent.name}.json": path for path in sorted(runs.glob("*/record.json"))}
    for file, path in found.items():
        record = read_record(path)
        raise_if_without_commit(record.environment, path)
        if record.kind != "games":
            whole = len(found) == 1 or record.name == name
            record = _reduced(
                record, whole=whole and path.stat().st_size <= MOST_BYTES, ladder=ladder
            )
        records[file] = record_json(record).encode()
    archive(records, name)
    return len(found)


def _reduced(record: Record, *, whole: bool, ladder: bool) -> Record:
    if ladder or not whole:
        loss = [line for line in record.trajectories if line.signal == "loss"]
        estimates = [one for one in record.estimates if not one.by]
        record = record.model_copy(
            update={"trajectories": loss, "estimates": estimates, **{part: [] for part in DRAWN}}
        )
    if ladder:
        record = record.model_copy(
            update={"usage": [], "estimates": [*of_rung(record), *record.others]}
        )
    return record


def of_rung(record: Record) -> list[Estimate]:
    """The figures that the leak ladder's page uses."""
    several = len(record.seeds) > 1
    return [
        one
        for one in record.findings
        if (one.seed is None) == several and one.metric.startswith(("auc", "tpr@"))
    ]


def raise_if_without_commit(made: Environment, path: Path) -> None:
    """Refuses a record that nobody could make again from a commit."""
    if not made.commit or made.commit.endswith("+"):
        raise BadInput(
            f"{path} was made by {made.commit or 'no known commit'}; run the study in a checkout "
            "without uncommitted changes"
        )
    known = subprocess.run(
        ["git", "merge-base", "--is-ancestor", made.commit, "HEAD"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if known.returncode:
        raise BadInput(
            f"{path} was made by {made.commit}, which is not in this history; run the study in a "
            "checkout of a commit that is"
        )


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--ladder"]
    folder = Path(words[0])
    print(keep(folder, words[1] if len(words) > 1 else folder.name, ladder="--ladder" in sys.argv))
