"""How often reports find a leak in recordings of heterogeneous federations, with and without one.

    python -m benchmarks.heterogeneous [--federations 200] [--part none] [--out FILE]

The number of clients (3 to 50), the label skew (Dirichlet 0.1 to 10) and the audited samples per
client (20 to 500) of each federation are drawn on a logarithmic scale. Clients train a linear model
on Gaussian classes for two rounds. In the part "none", no client trains on an audited sample, so
every leak that is found is a false alarm. In the parts "skewed" and "equal", clients train on their
audited members, with skewed and with equal label distributions. Half of these clients' labels are
drawn at random, so that a client with few classes has as much to memorise as one with many. Prints
a table in Markdown. ``--out`` appends a line of JSON for each federation to a file; a second start
continues after the last line.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedaudit
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import Split
from fedaudit.report.evidence import LEAKS
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record

ATTACKS = ("blackbox-loss", "avg-cosine", "fedmia-1")
CLASSES, WIDTH, BACKGROUND = 10, 20, 300
LEAK_EPOCHS = 3
PARTS = ("none", "skewed", "equal")


def main() -> None:
    """Run the federations of a part, and print how many of them have a leak as verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--part", choices=PARTS, default="none")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = list(_read(args.out)) if args.out else []
    for seed in range(len(results), args.federations):
        results.append(_federation(seed, args.part))
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
        print(f"{seed + 1} of {args.federations}: {results[-1]}", file=sys.stderr)
    _table(args.part, results[: args.federations])


def _read(path: Path) -> Iterator[dict[str, object]]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def _federation(seed: int, part: str) -> dict[str, object]:
    rng = np.random.default_rng([seed, 13])
    clients, audited = int(_log(rng, 3, 50)), int(_log(rng, 20, 500))
    beta = float(_log(rng, 0.1, 10.0))
    centres = rng.normal(size=(CLASSES, WIDTH))
    data = {
        f"site-{client}": _drawn(
            rng,
            centres,
            audited + BACKGROUND,
            beta=None if part == "equal" else beta,
            noise=0.0 if part == "none" else 0.5,
        )
        for client in range(clients)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = fedaudit.fair_split(data, audited=audited, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        record = _recorded(Path(folder), data, split, seed, part)
        outcome = evaluate_policy(record, policy_from(DEFAULT_POLICY)).outcome
    failed = sorted({result.control for result in record.controls if result.passed is False})
    status = summarise_verdict(record).status
    return {
        "clients": clients,
        "audited": audited,
        "beta": round(beta, 3),
        "status": status,
        "auc": _pooled_auc(record),
        "found": status in LEAKS.values(),
        "gate": str(outcome),
        "controls": failed,
    }


def _pooled_auc(record: Record) -> float | None:
    """Return the AUC of the loss over all clients, with members compared within their client."""
    figures = record.where(attack="blackbox-loss", metric="auc", contrast="unseen", target=None)
    return next((figure.value for figure in figures), None)


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _drawn(
    rng: np.random.Generator,
    centres: np.ndarray,
    count: int,
    *,
    beta: float | None,
    noise: float,
) -> tuple[Tensor, Tensor]:
    probabilities = np.full(CLASSES, 1 / CLASSES)
    if beta is not None:
        probabilities = rng.dirichlet(np.full(CLASSES, beta))
    labels = rng.choice(CLASSES, count, p=probabilities)
    features = centres[labels] + rng.normal(size=(count, WIDTH))
    if noise:
        labels = np.where(rng.random(count) < noise, rng.integers(0, CLASSES, count), labels)
    return torch.tensor(features, dtype=torch.float32), torch.tensor(labels)


def _recorded(
    folder: Path,
    data: dict[str, tuple[Tensor, Tensor]],
    split: Split,
    seed: int,
    part: str,
) -> Record:
    torch.manual_seed(seed)
    model = nn.Linear(WIDTH, CLASSES)
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    training = {site: _trains_on(site, data, split, part) for site in data}
    with fedaudit.record(
        folder / "run", model, split.audit, attacks=ATTACKS, log=lambda text: None
    ) as recorder:
        for index in (1, 2):
            uploads = {
                site: _trained(sent, *training[site], 1 if part == "none" else LEAK_EPOCHS)
                for site in data
            }
            recorder.round(index, sent=sent, uploads=uploads)
            sent = {n: torch.stack([state[n] for state in uploads.values()]).mean(0) for n in sent}
    return attack_recording(folder / "run", [], folder / "result")


def _trains_on(
    site: str, data: dict[str, tuple[Tensor, Tensor]], split: Split, part: str
) -> tuple[Tensor, Tensor]:
    """Return a site's training samples: only background, or its members and some background."""
    features, labels = data[site]
    audited, rows = _audited_rows(features, split), torch.from_numpy(split.train[site])
    members, background = rows[audited[rows]], rows[~audited[rows]]
    if part != "none":
        background = torch.cat([members, background[: BACKGROUND // 10]])
    return features[background], labels[background]


def _audited_rows(features: Tensor, split: Split) -> Tensor:
    audited = {bytes(row.numpy().tobytes()) for row in split.audit.samples.features}
    return torch.tensor([bytes(row.numpy().tobytes()) in audited for row in features])


def _trained(
    sent: dict[str, Tensor], features: Tensor, labels: Tensor, epochs: int
) -> dict[str, Tensor]:
    model = nn.Linear(WIDTH, CLASSES)
    model.load_state_dict(sent)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels)), 32):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(features[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return dict(model.state_dict())


def _table(part: str, results: list[dict[str, object]]) -> None:
    print("| part | federations | AUC of the loss | reported | gate fails | a control fails |")
    print("| --- | --- | --- | --- | --- | --- |")
    leaks = sum(bool(result["found"]) for result in results)
    fails = sum(result["gate"] == "fail" for result in results)
    controls = sum(bool(result["controls"]) for result in results)
    cells = [f"{count} ({count / len(results):.1%})" for count in (leaks, fails, controls)]
    values = [float(str(result["auc"])) for result in results if result.get("auc") is not None]
    mean = f"{np.mean(values):.3f}" if values else "-"
    print(f"| {part} | {len(results)} | {mean} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
