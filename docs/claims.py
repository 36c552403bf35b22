"""Generate the page of claims from claims and results.

python docs/claims.py                     write docs/claims.md
python docs/claims.py --check             compare the page with claims and results
python docs/claims.py --pairs RUNS NAME   compute the paired differences of AUCs that claims need
                                          from the runs of a study, into claims/pairs/NAME.json
python docs/claims.py --accuracies NAME   train the final models of a study again, and write the
                                          differences of their accuracies, paired by test sample,
                                          into claims/accuracies/NAME.json
python docs/claims.py --again CLAIM       repeat the runs of a claim ("all": of every claim) and
                                          compare every figure with the results
python docs/claims.py --ledger            list the open claims: why each is open, and its price

`claims/regimes.toml` names the regimes, `claims/PAPER.toml` the claims, and `claims/words.toml` the
words for their attacks, variants and figures. No verdict is written by hand.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.claims.accuracies import take_accuracies
from docs.claims.again import again
from docs.claims.data import papers
from docs.claims.ledger import ledger
from docs.claims.page import PAGE, difference, page
from docs.claims.pairs import take_pairs
from fedaudit.core.errors import FedauditError
from fedaudit.core.files import write_atomically


def main(words: Sequence[str]) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--pairs", nargs=2, metavar=("RUNS", "NAME"))
    what.add_argument("--accuracies", metavar="NAME")
    what.add_argument("--again", metavar="CLAIM")
    what.add_argument("--ledger", action="store_true")
    parser.add_argument("--data-dir", default="", help="data sets, for --accuracies and --again")
    parser.add_argument("--out", type=Path, default=Path("runs/again"), help="for the same")
    options = parser.parse_args(words)
    if options.pairs:
        print(take_pairs(Path(options.pairs[0]), options.pairs[1]))
        return 0
    if options.accuracies:
        data_dir = Path(options.data_dir) if options.data_dir else None
        print(take_accuracies(options.accuracies, data_dir=data_dir, out=options.out))
        return 0
    if options.again:
        return again(options.again, data_dir=options.data_dir, out=options.out)
    if options.ledger:
        print(ledger(papers()))
        return 0
    generated = page()
    if options.check:
        committed = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        print(difference(committed, generated) or "the page equals what claims and results give")
        return 0 if committed == generated else 1
    write_atomically(PAGE, generated)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FedauditError as refusal:
        sys.exit(str(refusal))
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command again to resume")
