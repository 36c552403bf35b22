"""Time that a recorder adds to a live round, and speed of writing updates.

    python -m benchmarks.recording [--only where] [--turns 3] [--smaller 2] [--picture FILE.svg]

Prints three tables in Markdown; ``--only`` selects one of them.

- "where": wall time of a loop of eight rounds, which measures 1,500 samples in every round: without
  a recorder, in the loop, in the background and afterwards. The model is a CNN with 2.2 million
  parameters for 32 x 32 pictures. Ten clients have 500 samples each. ``--picture`` draws the last
  turn.
- "share": CPU time that measuring adds. A round trains ResNet-18 for one epoch in batches of 32.
  Every tenth round, 1,500 audited samples are measured for every attack that a recording allows.
- "writing": wall time of writing the updates of a round, compared with a plain copy of the same
  bytes. Both are flushed to the disk.

``--smaller 10`` uses a tenth of all samples, which has the same ratios in a tenth of the time. All
variants run on one thread and alternate. The first turn is dropped, and the tables have medians.
"""

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, process_time
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from benchmarks.training import medians
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.core.values import Architecture, Model
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.audited import audit_samples
from fedaudit.live.measuring import MeasurementTime, RoundMeasurer
from fedaudit.live.network import network_of
from fedaudit.live.record import record
from fedaudit.live.recording import RoundEntry
from fedaudit.live.rounds import RoundData, round_of_uploads
from fedaudit.models import CNN, ResNet18
from fedaudit.observe.kept_files import write_round

CLIENTS, SAMPLES, AUDITED, EVERY, ROUNDS = 10, 500, 1500, 10, 8

Clients: TypeAlias = dict[int, tuple[Tensor, Tensor]]


def pictures(count: int, name: str) -> tuple[Tensor, Tensor]:
    rng = seeded(1, name)
    return torch.randn(count, 3, 32, 32, generator=rng), torch.arange(count) % 10


def network() -> nn.Module:
    return ResNet18().build((3, 32, 32), 10)


def train(module: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    module.train()
    for part in torch.split(torch.randperm(len(y)), 32):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x[part]), y[part]))
        optimizer.step()
    return module


def trained(base: Model, data: Clients) -> dict[int, nn.Module]:
    return {c: train(base.load_into(network()), *mine) for c, mine in data.items()}


def overhead(turns: int, smaller: int) -> None:
    data = {c: pictures(SAMPLES // smaller, f"client {c}") for c in range(CLIENTS)}
    audited = AUDITED // smaller
    members = {c: (x[: audited // 30], y[: audited // 30]) for c, (x, y) in data.items()}
    audit = audit_samples(members, pictures(audited - CLIENTS * (audited // 30), "unseen"))
    module = network()
    uploads = {c: network() for c in data}
    with TemporaryDirectory() as folder:
        recorder = record(Path(folder) / "recording", network, audit, strict=True)
        rounds = iter(range(1, 10**6))
        sent = module.state_dict()

        def round_of_training() -> None:
            for x, y in data.values():
                train(network(), x, y)

        def round_of_measuring() -> None:
            recorder.round(next(rounds), sent=sent, uploads=uploads)

        seconds = medians(
            {"train": round_of_training, "measure": round_of_measuring}, process_time, turns
        )
    added = seconds["measure"] / seconds["train"] / EVERY
    print("| round | measuring | added, every tenth round |")
    print("|---|---|---|")
    print(f"| {seconds['train']:.1f} s | {seconds['measure']:.1f} s | {added:.1%} |", flush=True)


class Span(NamedTuple):
    """An activity with its start and end, in seconds."""

    what: str
    start: float
    end: float


def small_network() -> nn.Module:
    return CNN().build((3, 32, 32), 10)


def where(turns: int, smaller: int, picture: Path | None) -> None:
    """Print the time of a loop of eight rounds for each choice of when rounds are measured."""
    data = {c: pictures(SAMPLES // smaller, f"client {c}") for c in range(CLIENTS)}
    audited = AUDITED // smaller
    members = {c: (x[: audited // 30], y[: audited // 30]) for c, (x, y) in data.items()}
    audit = audit_samples(members, pictures(audited - CLIENTS * (audited // 30), "unseen"))
    loops: dict[str, list[list[Span]]] = {"none": [], "now": [], "background": [], "after": []}
    for _ in range(turns):
        for when, by_turn in loops.items():
            by_turn.append(_loop(when, data, audit))
    print("| measured | round of the loop | ratio to no recorder | until all is measured |")
    print("|---|---|---|---|")
    rounds = {when: median(map(_a_round, by_turn[1:])) for when, by_turn in loops.items()}
    for when, by_turn in loops.items():
        total = median(max(s.end for s in spans) - spans[0].start for spans in by_turn[1:])
        ratio = rounds[when] / rounds["none"]
        print(f"| {when} | {rounds[when]:.2f} s | {ratio:.3f} | {total:.1f} s |", flush=True)
    if picture is not None:
        draw({when: by_turn[-1] for when, by_turn in loops.items()}, picture)


def _a_round(spans: list[Span]) -> float:
    """Return the wall seconds of a round, without the time after the last round."""
    loop = [s for s in spans if s.what in ("training", "recorder")]
    return (loop[-1].end - loop[0].start) / ROUNDS


def _loop(when: str, data: Clients, audit: AuditSet) -> list[Span]:
    base = Model.of(Architecture("net", small_network), small_network())
    with TemporaryDirectory() as folder:
        log = Path(folder) / "measured.jsonl"
        original = RoundMeasurer._measure_and_write

        def timed(self: RoundMeasurer, *arguments: Any) -> dict[int, str]:
            start = monotonic()
            result = original(self, *arguments)
            with log.open("a") as file:
                file.write(json.dumps(["measuring", start, monotonic()]) + "\n")
            return result

        RoundMeasurer._measure_and_write = timed  # type: ignore[method-assign, assignment]
        try:
            spans = list[Span]()
            recorder = None
            if when != "none":
                path, measure = Path(folder) / "recording", cast("MeasurementTime", when)
                recorder = record(
                    path, small_network, audit, measure=measure, log=lambda text: None
                )
            for index in range(1, ROUNDS + 1):
                start = monotonic()
                uploads = {
                    c: train(base.load_into(small_network()), *mine) for c, mine in data.items()
                }
                spans.append(Span("training", start, monotonic()))
                if recorder is not None:
                    start = monotonic()
                    recorder.round(index, sent=base, uploads=uploads)
                    spans.append(Span("recorder", start, monotonic()))
            if recorder is not None:
                recorder.close()
                lines = log.read_text().splitlines()
                spans += [Span(*json.loads(line)) for line in lines]
            return spans
        finally:
            RoundMeasurer._measure_and_write = original  # type: ignore[method-assign]


def draw(loops: Mapping[str, list[Span]], path: Path) -> None:
    """Draw a row for each loop: training, waiting for the recorder, and measuring."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    colours = {"training": "#4C78A8", "recorder": "#E45756", "measuring": "#72B7B2"}
    names = {
        "none": "no recorder",
        "now": "measured in the loop",
        "background": "measured in the background",
        "after": "measured afterwards",
    }
    with mpl.rc_context({"svg.hashsalt": "fedaudit", "font.size": 9}):
        figure = Figure(figsize=(8.4, 2.6), layout="constrained")
        axes = figure.subplots()
        for row, spans in enumerate(loops.values()):
            start = spans[0].start
            for span in spans:
                height = row + (0.22 if span.what == "measuring" else -0.22)
                axes.barh(
                    height,
                    span.end - span.start,
                    left=span.start - start,
                    height=0.4,
                    color=colours[span.what],
                    edgecolor="white",
                    linewidth=0.4,
                )
        axes.set_yticks(range(len(loops)), [names[when] for when in loops])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.spines[["top", "right", "left"]].set_visible(False)
        words = {
            "training": "training",
            "recorder": "the loop waits for the recorder",
            "measuring": "measuring",
        }
        marks = [mpl.patches.Patch(color=colours[what], label=words[what]) for what in words]
        figure.legend(handles=marks, loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None})


def writing(turns: int) -> None:
    audit = audit_samples({0: pictures(4, "member")}, pictures(4, "unseen"))
    shape = network_of(network, audit, CLASSIFICATION).layout
    clients = tuple(range(CLIENTS))
    entry = RoundEntry(round=1, selected=clients, answered=clients, measured=True)
    uploads = {client: network() for client in clients}
    round_data = RoundData(network().state_dict(), uploads, {}, None)
    round = round_of_uploads(entry, round_data, shape, "models", {}).round
    assert round is not None
    with TemporaryDirectory() as folder:
        paths = iter(Path(folder) / f"recording-{n}" for n in range(1000))
        sources: list[Path] = []

        def write() -> None:
            path = next(paths)
            write_round(path, round, "full")
            sources[:] = sorted(path.rglob("*.safetensors"))

        def copy() -> None:
            for path in sources:
                target = path.with_suffix(".copy")
                shutil.copyfile(path, target)
                with target.open("rb") as file:
                    os.fsync(file.fileno())

        seconds = medians({"write": write, "copy": copy}, perf_counter, turns)
        size = sum(path.stat().st_size for path in sources)
    print("\n| bytes | writing | plain copy | speed of a copy |")
    print("|---|---|---|---|")
    print(
        f"| {size / 1e6:.0f} MB | {seconds['write']:.2f} s | {seconds['copy']:.2f} s | "
        f"{seconds['copy'] / seconds['write']:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--smaller", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only", default="", choices=["", "where", "share", "writing"])
    args = parser.parse_args()
    if args.turns < 2:
        parser.error("the first turn warms up and is dropped; give at least 2")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    if args.only in ("", "where"):
        where(args.turns, args.smaller, args.picture)
    if args.only in ("", "share"):
        overhead(args.turns, args.smaller)
    if args.only in ("", "writing"):
        writing(args.turns)


if __name__ == "__main__":
    main()
