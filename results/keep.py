"""Copy the records of a study and its variants into the study's archive.

python results/keep.py runs/cofedmid-mnist [NAME]
python results/keep.py games/ami-digits
python results/keep.py runs/ladder-letters --ladder

Every variant's record.json below the folder is added to the archive of the study's name (or NAME)
beside this file. The study's own record is copied unchanged if it is at most 700 kB. Other records
are reduced to what `fedaudit compare` and the pages of results and claims use: estimates without
groups, controls, utility, usage and the loss by round. A record of games is copied unchanged. With
--ladder, only AUCs and rates over the seeds, source inference, utility and the loss by round are
copied.
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
CHART_FIELDS = ("curves", "histograms", "exposed")
"""Fields of a record that only charts and tables of a report use."""
MAX_BYTES = 700_000
"""Maximum size of a record that is copied unchanged."""


def keep(runs: Path, name: str, *, ladder: bool = False) -> int:
    """Add all records below a folder to the archive of a study, or replace them there.

    Returns:
        Number of records that were added.

    Raises:
        BadInput: A record does not name the commit that made it, or there were uncommitted changes.
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
                record, whole=whole and path.stat().st_size <= MAX_BYTES, ladder=ladder
            )
        records[file] = record_json(record).encode()
    archive(records, name)
    return len(found)


def _reduced(record: Record, *, whole: bool, ladder: bool) -> Record:
    if ladder or not whole:
        loss = [curve for curve in record.trajectories if curve.signal == "loss"]
        estimates = [estimate for estimate in record.estimates if not estimate.by]
        record = record.model_copy(
            update={
                "trajectories": loss,
                "estimates": estimates,
                **{name: [] for name in CHART_FIELDS},
            }
        )
    if ladder:
        record = record.model_copy(
            update={"usage": [], "estimates": [*ladder_estimates(record), *record.others]}
        )
    return record


def ladder_estimates(record: Record) -> list[Estimate]:
    """Return the estimates that the page of the leak ladder uses."""
    several = len(record.seeds) > 1
    return [
        estimate
        for estimate in record.findings
        if (estimate.seed is None) == several and estimate.metric.startswith(("auc", "tpr@"))
    ]


def raise_if_without_commit(environment: Environment, path: Path) -> None:
    """Raise if a record cannot be reproduced from a commit of this repository's history."""
    commit = environment.commit
    if not commit or commit.endswith("+"):
        raise BadInput(
            f"{path} was made by {commit or 'no known commit'}; run the study in a checkout "
            "without uncommitted changes"
        )
    known = subprocess.run(
        ["git", "merge-base", "--is-ancestor", commit, "HEAD"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if known.returncode:
        raise BadInput(
            f"{path} was made by {commit}, which is not in this history; run the study in a "
            "checkout of a commit that is"
        )


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--ladder"]
    runs = Path(arguments[0])
    name = arguments[1] if len(arguments) > 1 else runs.name
    print(keep(runs, name, ladder="--ladder" in sys.argv))
