"""What a recorder adds to a live round, and how fast it writes updates.

    python -m benchmarks.recording [--only where] [--turns 3] [--smaller 2] [--picture FILE.svg]

Prints tables in Markdown. Where measuring is done: wall seconds of a loop of eight rounds, with a
CNN of 2.2 million parameters on 32 x 32 pictures and ten clients with 500 samples each, that
measures 1,500 samples every round: without a recorder, in the loop, beside it and after it;
``--picture`` draws the last turn. The share that measuring adds: a round is ResNet-18, one epoch in
batches of 32, and 1,500 audited samples are measured for every attack that a recording allows,
every tenth round. ``--smaller 10`` has a tenth of the samples of all kinds, which keeps the ratio
and takes a tenth of the time. Writing: the updates of a round beside a plain copy of the same
bytes, both flushed to the disk; wall seconds. All on one thread, variants in turn, the first turn
dropped, medians; seconds of the share are CPU seconds. ``--only`` takes one of the three.
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
from fedaudit.live.measuring import Measuring, When
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
    share = seconds["measure"] / seconds["train"] / EVERY
    print("| round | measuring | added, every tenth round |")
    print("|---|---|---|")
    print(f"| {seconds['train']:.1f} s | {seconds['measure']:.1f} s | {share:.1%} |", flush=True)


class Span(NamedTuple):
    """Something that was done from one moment to another."""

    what: str
    began: float
    ended: float


def small_network() -> nn.Module:
    return CNN().build((3, 32, 32), 10)


def where(turns: int, smaller: int, picture: Path | None) -> None:
    """What a loop of eight rounds takes, wherever its rounds are measured."""
    data = {c: pictures(SAMPLES // smaller, f"client {c}") for c in range(CLIENTS)}
    audited = AUDITED // smaller
    members = {c: (x[: audited // 30], y[: audited // 30]) for c, (x, y) in data.items()}
    audit = audit_samples(members, pictures(audited - CLIENTS * (audited // 30), "unseen"))
    loops: dict[str, list[list[Span]]] = {"none": [], "now": [], "background": [], "after": []}
    for _ in range(turns):
        for when, found in loops.items():
            found.append(_loop(when, data, audit))
    print("| measured | round of the loop | beside no recorder | until all is measured |")
    print("|---|---|---|---|")
    rounds = {when: median(map(_a_round, found[1:])) for when, found in loops.items()}
    for when, found in loops.items():
        whole = median(max(s.ended for s in each) - each[0].began for each in found[1:])
        ratio = rounds[when] / rounds["none"]
        print(f"| {when} | {rounds[when]:.2f} s | {ratio:.3f} | {whole:.1f} s |", flush=True)
    if picture is not None:
        draw({when: found[-1] for when, found in loops.items()}, picture)


def _a_round(spans: list[Span]) -> float:
    """Wall seconds of a round of the loop, without what comes after the last one."""
    loop = [s for s in spans if s.what in ("training", "recorder")]
    return (loop[-1].ended - loop[0].began) / ROUNDS


def _loop(when: str, data: Clients, audit: AuditSet) -> list[Span]:
    base = Model.of(Architecture("net", small_network), small_network())
    with TemporaryDirectory() as folder:
        log = Path(folder) / "measured.jsonl"
        own = Measuring._measure_and_write

        def timed(self: Measuring, *given: Any) -> dict[int, str]:
            began = monotonic()
            taken = own(self, *given)
            with log.open("a") as file:
                file.write(json.dumps(["measuring", began, monotonic()]) + "\n")
            return taken

        Measuring._measure_and_write = timed  # type: ignore[method-assign, assignment]
        try:
            spans = list[Span]()
            recorder = None
            if when != "none":
                place = Path(folder) / "recording"
                time_ = cast("When", when)
                recorder = record(place, small_network, audit, measure=time_, log=lambda text: None)
            for index in range(1, ROUNDS + 1):
                began = monotonic()
                uploads = {
                    c: train(base.load_into(small_network()), *mine) for c, mine in data.items()
                }
                spans.append(Span("training", began, monotonic()))
                if recorder is not None:
                    began = monotonic()
                    recorder.round(index, sent=base, uploads=uploads)
                    spans.append(Span("recorder", began, monotonic()))
            if recorder is not None:
                recorder.close()
                lines = log.read_text().splitlines()
                spans += [Span(*json.loads(line)) for line in lines]
            return spans
        finally:
            Measuring._measure_and_write = own  # type: ignore[method-assign]


def draw(loops: Mapping[str, list[Span]], path: Path) -> None:
    """A row a loop: training, what the recorder takes of it, and measuring."""
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
            start = spans[0].began
            for one in spans:
                place = row + (0.22 if one.what == "measuring" else -0.22)
                axes.barh(
                    place,
                    one.ended - one.began,
                    left=one.began - start,
                    height=0.4,
                    color=colours[one.what],
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
    shape = network_of(network, audit, CLASSIFICATION).shape
    clients = tuple(range(CLIENTS))
    told = RoundEntry(round=1, asked=clients, answered=clients, measured=True)
    uploads = {client: network() for client in clients}
    given = RoundData(network().state_dict(), uploads, {}, None)
    round = round_of_uploads(told, given, shape, "models", {}).round
    assert round is not None
    with TemporaryDirectory() as folder:
        places = iter(Path(folder) / f"recording-{n}" for n in range(1000))
        sources: list[Path] = []

        def write() -> None:
            place = next(places)
            write_round(place, round, "full")
            sources[:] = sorted(place.rglob("*.safetensors"))

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
    given = parser.parse_args()
    if given.turns < 2:
        parser.error("the first turn warms up and is dropped; give at least 2")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    if given.only in ("", "where"):
        where(given.turns, given.smaller, given.picture)
    if given.only in ("", "share"):
        overhead(given.turns, given.smaller)
    if given.only in ("", "writing"):
        writing(given.turns)


if __name__ == "__main__":
    main()
