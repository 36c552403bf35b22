"""Bytes changed at random, led by which branches they reach: ``python -m fuzz.bytes TARGET``.

    python -m fuzz.bytes "safetensors" --runs 100000 [--seconds 600]

Needs atheris. Ends at the first input that makes a reader raise anything but a refusal, take more
than five seconds or more than one and a half gigabytes, of which the program has half of one
itself; prints one line of JSON else.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import atheris

with atheris.instrument_imports(include=["fedaudit", "pydantic", "json", "tomllib"]):
    from fuzz.target import FOLDER, TOKENS, refused, stretched, sweep
    from fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[*TARGETS])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=0)
    given = parser.parse_args()
    target = TARGETS[given.target]
    seeds = Path(mkdtemp(dir=FOLDER))
    usual, rng = target.seeds(), Random(0)
    long = [stretched(one, token, rng) for token in TOKENS for one in usual[:2]]
    for number, seed in enumerate([*usual, *long]):
        (seeds / str(number)).write_bytes(seed)
    counts = {"tried": 0, "refused": 0}
    begun = time.monotonic()

    def one(content: bytes) -> None:
        counts["refused"] += refused(target.read, content)
        counts["tried"] += 1
        if counts["tried"] == given.runs:
            seconds = round(time.monotonic() - begun)
            found = {"target": given.target, "by": "bytes", **counts, "seconds": seconds}
            # Whatever is not printed now is lost: atheris ends the process.
            print(json.dumps(found), flush=True)
            sweep()

    options = [f"-runs={given.runs}", "-timeout=5", "-rss_limit_mb=1500", "-max_len=1000000"]
    if given.seconds:
        options.append(f"-max_total_time={given.seconds}")
    atheris.Setup([sys.argv[0], *options, str(seeds)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
