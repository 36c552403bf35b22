"""Random changes of bytes without guidance; needs no additional package.

    python -m fuzz.damage "checkpoint" --runs 20000

Stops at the first input for which a reader raises an error that is not from fedaudit. Otherwise
prints one line of JSON, with the seconds of the slowest input.
"""

import argparse
import json
import time
from random import Random

from fuzz.target import damaged, refused
from fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[*TARGETS])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    target, rng = TARGETS[args.target], Random(args.seed)
    seeds, counts, slowest = target.seeds(), {"tried": 0, "refused": 0}, 0.0
    for _ in range(args.runs):
        content, start = damaged(rng.choice(seeds), rng), time.monotonic()
        try:
            counts["refused"] += refused(target.read, content)
        except BaseException:
            print(f"failed on {content!r}")
            raise
        counts["tried"] += 1
        slowest = max(slowest, time.monotonic() - start)
    result = {"target": args.target, "by": "damage", **counts, "slowest": round(slowest, 2)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
