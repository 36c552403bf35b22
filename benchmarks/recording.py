"""What a recorder adds to a live round, and how fast it writes updates.

    python -m benchmarks.recording [--turns 3] [--smaller 10]

Prints tables in Markdown. A round: ResNet-18 on 32 x 32 pictures, 10 clients with 500 samples each,
one epoch in batches of 32; 1,500 audited samples are measured for every attack that a recording
allows, every tenth round. ``--smaller 10`` has a tenth of the samples of both kinds, which keeps
the ratio and takes a tenth of the time. Seconds are CPU seconds on one thread; variants run in
turn, the first turn is dropped, medians are shown. Writing: the updates of a round beside a plain
copy of the same bytes, both flushed to the disk; wall seconds.
"""

import argparse
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

from benchmarks.training import medians
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.core.values import Model
from fedaudit.live.audited import audit_samples
from fedaudit.live.network import network_of
from fedaudit.live.recorder import record
from fedaudit.live.recording import RoundEntry
from fedaudit.live.weights import Answers, round_of_uploads
from fedaudit.models.resnet import resnet18
from fedaudit.observe.kept_files import write_round

CLIENTS, SAMPLES, AUDITED, EVERY = 10, 500, 1500, 10


def pictures(count: int, name: str) -> tuple[Tensor, Tensor]:
    rng = seeded(1, name)
    return torch.randn(count, 3, 32, 32, generator=rng), torch.arange(count) % 10


def network() -> nn.Module:
    return resnet18(shape=(3, 32, 32), classes=10)


def train(module: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    module.train()
    for part in torch.split(torch.randperm(len(y)), 32):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x[part]), y[part]))
        optimizer.step()
    return module


def trained(base: Model, data: dict[int, tuple[Tensor, Tensor]]) -> dict[int, nn.Module]:
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


def writing(turns: int) -> None:
    audit = audit_samples({0: pictures(4, "member")}, pictures(4, "unseen"))
    shape = network_of(network, audit, CLASSIFICATION).shape
    clients = tuple(range(CLIENTS))
    told = RoundEntry(round=1, asked=clients, answered=clients, measured=True)
    uploads = {client: network() for client in clients}
    given = Answers(network().state_dict(), uploads, {}, None)
    round = round_of_uploads(told, given, shape, "models", {})
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
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    overhead(given.turns, given.smaller)
    writing(given.turns)


if __name__ == "__main__":
    main()
