"""The page of claims, from claims and records: which of the papers' claims hold, and where.

python docs/claims.py                     writes docs/claims.md anew
python docs/claims.py --check             says whether the page is what claims and records give
python docs/claims.py --pairs RUNS NAME   takes the paired differences of AUCs that claims name from
                                          the folders of a study's runs into claims/pairs/NAME.json

`claims/regimes.toml` names the regimes, `claims/PAPER.toml` the claims. Nobody writes a verdict by
hand.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.claims.page import PAGE, page
from docs.claims.pairs import take_pairs
from fedaudit.files import write_whole


def main(words: Sequence[str]) -> int:
    """What the command line asks for; the exit code."""
    if words[:1] == ["--pairs"] and len(words) == 3:
        print(take_pairs(Path(words[1]), words[2]))
        return 0
    if list(words) not in ([], ["--check"]):
        print(__doc__)
        return 2
    made = page()
    if words:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made
        print("the page is what claims and records give" if same else "run python docs/claims.py")
        return 0 if same else 1
    write_whole(PAGE, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
