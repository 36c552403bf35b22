"""Random changes of bytes, guided by the branches that they reach.

    python -m fuzz.bytes "safetensors" --runs 100000 [--seconds 600]

Needs atheris. Stops at the first input for which a reader raises an error that is not from
fedaudit, takes more than five seconds, or uses more than one and a half gigabytes. The program
itself uses half a gigabyte of these. Otherwise prints one line of JSON.
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
    from fuzz.target import FOLDER, TOKENS, refused, remove_folder, stretched
    from fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[*TARGETS])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=0)
    args = parser.parse_args()
    target = TARGETS[args.target]
    seeds = Path(mkdtemp(dir=FOLDER))
    valid, rng = target.seeds(), Random(0)
    long = [stretched(seed, token, rng) for token in TOKENS for seed in valid[:2]]
    for number, seed in enumerate([*valid, *long]):
        (seeds / str(number)).write_bytes(seed)
    counts = {"tried": 0, "refused": 0}
    start = time.monotonic()

    def read_input(content: bytes) -> None:
        counts["refused"] += refused(target.read, content)
        counts["tried"] += 1
        if counts["tried"] == args.runs:
            seconds = round(time.monotonic() - start)
            result = {"target": args.target, "by": "bytes", **counts, "seconds": seconds}
            # atheris ends the process after the last input, so the result is printed here.
            print(json.dumps(result), flush=True)
            remove_folder()

    options = [f"-runs={args.runs}", "-timeout=5", "-rss_limit_mb=1500", "-max_len=1000000"]
    if args.seconds:
        options.append(f"-max_total_time={args.seconds}")
    atheris.Setup([sys.argv[0], *options, str(seeds)], read_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
