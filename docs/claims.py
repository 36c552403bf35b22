"""The page of claims, from claims and records: which of the papers' claims hold, and where.

python docs/claims.py                     writes docs/claims.md anew
python docs/claims.py --check             says whether the page is what claims and records give
python docs/claims.py --pairs RUNS NAME   takes the paired differences of AUCs that claims name from
                                          the folders of a study's runs into claims/pairs/NAME.json
python docs/claims.py --again CLAIM       carries out what a claim's row rests on ("all": every row)
                                          and compares every figure with the records

`claims/regimes.toml` names the regimes, `claims/PAPER.toml` the claims. Nobody writes a verdict by
hand.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.claims.again import again
from docs.claims.page import PAGE, difference, page
from docs.claims.pairs import take_pairs
from fedaudit.core.errors import FedauditError
from fedaudit.core.files import write_whole


def main(words: Sequence[str]) -> int:
    """What the command line asks for; the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--pairs", nargs=2, metavar=("RUNS", "NAME"))
    what.add_argument("--again", metavar="CLAIM")
    parser.add_argument("--data-dir", default="", help="data sets, for --again")
    parser.add_argument("--out", type=Path, default=Path("runs/again"), help="runs, for --again")
    asked = parser.parse_args(words)
    if asked.pairs:
        print(take_pairs(Path(asked.pairs[0]), asked.pairs[1]))
        return 0
    if asked.again:
        return again(asked.again, data_dir=asked.data_dir, out=asked.out)
    made = page()
    if asked.check:
        kept = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        print(difference(kept, made) or "the page is what claims and records give")
        return 0 if kept == made else 1
    write_whole(PAGE, made)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FedauditError as refusal:
        sys.exit(str(refusal))
    except KeyboardInterrupt:
        sys.exit("stopped; start the same command again to go on")
