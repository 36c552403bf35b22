"""Keeps the records of a study that was run with all its variants, small enough for a repository.

python records/keep.py runs/cofedmid-mnist [NAME]
python records/keep.py games/ami-digits
python records/keep.py runs/ladder-letters --rung

Takes every variant's record.json below the folder into the folder of the study's name (or NAME)
beside this file. The study's own record stays whole if it is under 700 kB; of it else, and of
the variants, only what `fedaudit compare` and the pages of results and claims use is kept: figures,
controls, utility, usage and the loss by round, nothing else that is drawn. A record of games is
kept as it is. Of a rung of the leak ladder (--rung) less still: AUCs and rates over the seeds,
sources, utility and the loss by round.
"""

import subprocess
import sys
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.files import RECORD_FILE
from fedaudit.results.estimate import Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Environment, Record, write_record

HERE = Path(__file__).parent
DRAWN = ("curves", "histograms", "exposed")
MOST_BYTES = 700_000


def keep(runs: Path, name: str, *, rung: bool = False) -> int:
    """Copies all records below a folder; how many there were.

    Raises:
        BadInput: A record does not say which commit made it, or there were uncommitted changes.
    """
    (HERE / name).mkdir(exist_ok=True)
    own = runs / RECORD_FILE
    if own.is_file() and read_record(own).kind == "games":
        record = read_record(own)
        refuse_without_commit(record.environment, runs)
        write_record(record, HERE / name / f"{name}.json")
        return 1
    found = sorted(runs.glob("*/record.json"))
    for path in found:
        record = read_record(path)
        refuse_without_commit(record.environment, path)
        own = record.name == name or len(found) == 1
        if rung or not own or path.stat().st_size > MOST_BYTES:
            loss = [line for line in record.trajectories if line.signal == "loss"]
            whole = [one for one in record.estimates if not one.by]
            record = record.model_copy(
                update={"trajectories": loss, "estimates": whole, **{part: [] for part in DRAWN}}
            )
        if rung:
            record = record.model_copy(
                update={"usage": [], "estimates": [*of_rung(record), *record.others]}
            )
        write_record(record, HERE / name / f"{path.parent.name}.json")
    return len(found)


def of_rung(record: Record) -> list[Estimate]:
    """The figures that the leak ladder's page uses."""
    several = len(record.seeds) > 1
    return [
        one
        for one in record.findings
        if (one.seed is None) == several and one.metric.startswith(("auc", "tpr@"))
    ]


def refuse_without_commit(made: Environment, path: Path) -> None:
    """Refuses a record that nobody could make again from a commit."""
    if not made.commit or made.commit.endswith("+"):
        raise BadInput(
            f"{path} was made by {made.commit or 'no known commit'}; run the study in a checkout "
            "without uncommitted changes"
        )
    known = subprocess.run(
        ["git", "merge-base", "--is-ancestor", made.commit, "HEAD"],
        cwd=HERE,
        check=False,
        capture_output=True,
    )
    if known.returncode:
        raise BadInput(
            f"{path} was made by {made.commit}, which is not in this history; run the study in a "
            "checkout of a commit that is"
        )


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--rung"]
    folder = Path(words[0])
    print(keep(folder, words[1] if len(words) > 1 else folder.name, rung="--rung" in sys.argv))
