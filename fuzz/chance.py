"""Bytes changed by chance alone, which needs no package: ``python -m fuzz.chance TARGET``.

    python -m fuzz.chance "checkpoint" --runs 20000

Ends at the first input that makes a reader raise anything but a refusal; prints one line of JSON
else, with the seconds that the slowest input took.
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
    asked = parser.parse_args()
    target, rng = TARGETS[asked.target], Random(asked.seed)
    seeds, counts, slowest = target.seeds(), {"tried": 0, "refused": 0}, 0.0
    for _ in range(asked.runs):
        content, begun = damaged(rng.choice(seeds), rng), time.monotonic()
        try:
            counts["refused"] += refused(target.read, content)
        except BaseException:
            print(f"failed on {content!r}")
            raise
        counts["tried"] += 1
        slowest = max(slowest, time.monotonic() - begun)
    found = {"target": asked.target, "by": "chance", **counts, "slowest": round(slowest, 2)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
