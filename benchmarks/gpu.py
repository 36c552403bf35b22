"""Speed and bits of a GPU compared with the CPU, and FedMIA's Table 1 at the paper's size.

    python -m benchmarks.gpu --out runs/gpu --data-dir D [--data cifar10] [--minutes 50]
    python -m benchmarks.gpu --out runs/gpu-quick --device cpu --quick

Writes ``gpu.json`` and ``gpu.md`` to the folder, after each part. The same command continues after
the last complete part, and the training after its last complete round. Copy ``gpu.json`` to
``results/gpu.json`` to publish it: ``python docs/results.py`` then builds a page.

- *Kernels:* an epoch of training, an epoch of DP-SGD, gradient signals, and losses of each model,
  on the CPU (one thread) and on the device. All variants run alternately; the first turn is
  dropped, and the tables have medians of wall time. The *floor* is plain torch on the same device:
  one forward (and backward) pass over the same samples, with the best of several batch sizes.
- *Bits:* the results of the same work on both devices, and of two runs on the device.
- *Training:* the study ``fedmia-paper-cifar100-alexnet``, the first row of FedMIA's Table 1. With
  ``--minutes``, it stops after this time; the same command resumes it.

``--parts training`` runs only this part, and ``--parts kernels`` the others.

``--quick`` runs everything on few samples, to test this program. Exit codes: 0 if all parts are
complete, 2 if an option is refused or the training fails, 3 if the time was used up, 4 if there is
no CUDA device.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gradients import CASES, Case, Data, data_for, in_turn, table
from fedaudit import __version__
from fedaudit.core.devices import CPU, computing_on, device_model, device_named
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import RECORD_FILE, write_atomically
from fedaudit.core.metric_names import AUC
from fedaudit.core.values import Samples, chunks
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.observe.tensors import round_paths
from fedaudit.results.read import read_record
from fedaudit.signals.gradients import gradient_products
from fedaudit.signals.measure import measure_round
from fedaudit.signals.outputs import Loss

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "fedmia-paper-cifar100-alexnet.toml"
RESULTS, PAGE = "gpu.json", "gpu.md"
COMPLETE, REFUSED, OUT_OF_TIME, NO_CUDA, INTERRUPTED = 0, 2, 3, 4, 130
"""Exit codes."""

CLIENTS = 10
TRAINING = LocalTraining(epochs=1, batch_size=100, lr=0.01)
BATCHES = (32, 128, 512, 2048)
MAX_SAMPLES = 2048
SAMPLES: Mapping[str, int] = {"resnet18": 128, "transformer": 128, "minilm": 128}
"""Largest number of samples, by model, so that the CPU needs about ten minutes for all kernels."""
QUICK_MODELS = ("mlp", "alexnet")
QUICK_SAMPLES = 24
QUICK_SETTINGS = (
    "--data.name=digits",
    "--model.name=mlp",
    "--partition.clients=3",
    "--partition.samples_per_client=100",
    "--training.rounds=20",
    "--figures.blind_classifier=false",
)
"""Settings that replace those of the study in the quick form."""
_SECONDS_TO_STOP = 120.0

Json = dict[str, Any]
Run = Callable[[], list[Tensor]]


class Work(NamedTuple):
    """Work that is timed on both devices.

    Attributes:
        name: Name in the tables.
        run: Does the work on a device, and returns its results.
        needs_backward: Whether the floor includes a backward pass.
        passes: Number of passes over the samples in the floor.
    """

    name: str
    run: Callable[[Data, torch.device], list[Tensor]]
    needs_backward: bool
    passes: int = 1


def samples_of(data: Data) -> Samples:
    count = len(data.labels)
    # Targets of sequences are no classes, so all samples are in one group.
    groups = torch.zeros(count, dtype=torch.int64)
    return Samples(data.features, data.labels, torch.arange(count), groups)


def trained(defense: Defense, data: Data, device: torch.device) -> list[Tensor]:
    """Train an epoch, and return the parameters."""
    samples = samples_of(data)
    context = ClientContext(
        round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=0, device=device
    )
    model = train(data.base, samples, TRAINING, defense, context.with_model(data.base))
    return list(model.params.values())


def gradient_signals(data: Data, device: torch.device) -> list[Tensor]:
    products = gradient_products(data.base, data.updates, data.features, data.labels, device=device)
    return [products.dots, products.squared_norms]


def losses(data: Data, device: torch.device) -> list[Tensor]:
    observed = {client: ObservedModels(local=data.base) for client in range(CLIENTS)}
    round = Round(
        index=1,
        observed=observed,
        sent={},
        uploads={},
        weights={},
        selected=tuple(observed),
        answered=tuple(observed),
    )
    samples = samples_of(data)
    return list(measure_round(round, [Loss()], samples, device=device).signals.values())


WORK = (
    Work("training", partial(trained, UNDEFENDED), needs_backward=True),
    Work("DP-SGD", partial(trained, DPSGD(clip=1.0, noise_multiplier=1.0)), needs_backward=True),
    Work("gradient signals", gradient_signals, needs_backward=True),
    Work("losses", losses, needs_backward=False, passes=CLIENTS),
)


def floor(work: Work, data: Data, batch: int, device: torch.device) -> None:
    """Pass all samples through the model in plain torch."""
    with computing_on(device):
        module, task = data.base.module().to(device), data.base.architecture.task
        params = [param for param in module.parameters() if param.requires_grad]
        for _ in range(work.passes):
            for part in chunks(len(data.labels), batch):
                x, y = data.features[part].to(device), data.labels[part].to(device)
                with torch.set_grad_enabled(work.needs_backward):
                    loss = task.losses(task.outputs(module, x), y).sum()
                if work.needs_backward:
                    torch.autograd.grad(loss, params)
        finish(device)


def finish(device: torch.device) -> None:
    """Wait until all work on a GPU is complete, so that it can be timed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def kernel_row(work: Work, case: Case, data: Data, device: torch.device, *, turns: int = 1) -> Json:
    """Return the seconds of the floor and of fedaudit on both devices."""
    devices = {"cpu": CPU, "device": device}
    runs: dict[str, Callable[[], None]] = {}
    for name, each in devices.items():
        sizes = [size for size in BATCHES if size <= len(data.labels)] or [len(data.labels)]
        floors = {str(size): partial(floor, work, data, size, each) for size in sizes}
        times = in_turn(floors, 1, perf_counter)
        runs[f"{name}_floor"] = floors[min(times, key=lambda size: times[size])]
        runs[name] = partial(_discard, work, data, each)
    seconds = in_turn(runs, turns, perf_counter)
    return {"samples": len(data.labels), **seconds}


def _discard(work: Work, data: Data, device: torch.device) -> None:
    work.run(data, device)
    finish(device)


def bits_row(work: Work, case: Case, data: Data, device: torch.device) -> Json:
    """Compare the results of both devices, and of two runs on the device."""
    on_cpu, on_device, again = (work.run(data, each) for each in (CPU, device, device))
    pairs = list(zip(on_cpu, on_device, strict=True))
    size = max(float(a.double().abs().max()) for a, _ in pairs)
    difference = max(float((a.double() - b.double().cpu()).abs().max()) for a, b in pairs)
    return {
        "equal": all(torch.equal(a, b.cpu()) for a, b in pairs),
        "largest_difference": difference,
        "relative_to_largest": difference / size if size else 0.0,
        "repeatable": all(map(torch.equal, on_device, again)),
    }


# --- training ------------------------------------------------------------------------------------


def training_command(args: argparse.Namespace, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "fedaudit", "run", str(STUDY), "--out", str(folder)]
    command += ["--device", args.device, "--workers", "1"]
    if args.data_dir:
        command += ["--data-dir", str(args.data_dir)]
    if args.quick:
        return [*command, *QUICK_SETTINGS]
    return [*command, *([f"--data.name={args.data}"] if args.data else [])]


def train_study(args: argparse.Namespace, before: Json) -> Json:
    """Start or resume the study, and return what is complete.

    Raises:
        BadInput: The command failed.
    """
    folder, start = args.out / "study", perf_counter()
    process = subprocess.Popen(training_command(args, folder))
    limit = None if args.minutes is None else 60 * args.minutes
    stopped = False
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        stopped = True
        # A program that was started in the background ignores SIGINT.
        process.terminate()
        try:
            code = process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    seconds = before.get("seconds", 0.0) + perf_counter() - start
    if code and not stopped:
        raise BadInput(f"the training of {STUDY.name} failed (exit code {code}); see above")
    measured = folder / "seed-1" / "measured"
    rounds = [index for index, _ in round_paths(measured, ".safetensors")]
    result: Json = {
        "study": STUDY.stem,
        "data": args.data or ("digits" if args.quick else ""),
        "seconds": seconds,
        "last_measured_round": max(rounds, default=0),
        "complete": code == 0,
    }
    return result | (_figures(folder / RECORD_FILE) if code == 0 else {})


def _figures(path: Path) -> Json:
    """Return the AUCs of membership attacks in a record."""
    record = read_record(path)
    return {
        "rounds": record.config["training"]["rounds"],  # type: ignore[index]
        "auc": [
            {
                "attack": estimate.attack,
                "contrast": estimate.contrast,
                "value": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
            }
            for estimate in record.findings
            if estimate.metric == AUC and estimate.attack and estimate.target is not None
        ],
    }


# --- results -------------------------------------------------------------------------------------


class Results:
    """Results in a folder; they are written after each part."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self._folder: Path = args.out
        self._path = args.out / RESULTS
        about = {
            "device": device_model(device) or "cpu",
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
            "fedaudit": __version__,
            "commit": _commit(),
            "quick": args.quick,
            "turns": args.turns,
        }
        self.values: Json = {"about": about, "kernels": [], "bits": [], "training": {}}
        if self._path.is_file():
            try:
                self.values = json.loads(self._path.read_text(encoding="utf-8"))
                stored = self.values["about"]
            except (ValueError, LookupError, TypeError) as error:
                raise BadInput(
                    f"{self._path} is damaged ({error!r}); remove it, or give another folder"
                ) from error
            if stored != about:
                raise BadInput(
                    f"{self._path} has results of another device, version or setting ({stored}); "
                    "give another folder"
                )

    def lacks(self, part: str, work: Work, case: Case) -> bool:
        rows = self.values[part]
        return (work.name, case.name) not in [(row["work"], row["model"]) for row in rows]

    def write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(self.values, indent=1) + "\n")
        write_atomically(self._folder / PAGE, page(self.values))


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def published_page(path: Path) -> str:
    """Return the page of committed results.

    Raises:
        BadInput: The results are of the quick form, or of a CPU.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    if values["about"]["quick"] or values["about"]["device"] == "cpu":
        raise BadInput(f"{path} is a test of the program; publish results of a GPU only")
    return page(values)


def page(values: Json) -> str:
    """Return the results as a page in Markdown."""
    about, training = values["about"], values["training"]
    lines = [
        "# Results on a GPU",
        "",
        f"Compare a GPU with the CPU: {about['device']}, torch {about['torch']}, measured by "
        f"`python -m benchmarks.gpu` of commit {about['commit'][:12] or 'unknown'}.",
        *(["", "This is the quick form: its times have no meaning."] if about["quick"] else []),
        "",
        "## Speed",
        "",
        "Milliseconds per sample, medians of wall time. The floor is plain torch on the same "
        "device, and the CPU uses one thread.",
        "",
        *table(
            (
                "work",
                "model",
                "CPU",
                "x floor",
                "GPU",
                "x floor",
                "CPU / GPU",
            ),
            list(_speed_rows(values["kernels"])),
        ),
        "## Bits",
        "",
        "The same work with the same seed on both devices. The difference is the largest one, "
        "relative to the largest result. Repeatable: two runs on the GPU are equal.",
        "",
        *table(
            ("work", "model", "equal", "largest difference", "repeatable"),
            [
                (
                    row["work"],
                    row["model"],
                    _yes(row["equal"]),
                    f"{row['relative_to_largest']:.1e}",
                    _yes(row["repeatable"]),
                )
                for row in values["bits"]
                if "refused" not in row
            ],
        ),
        "## Training at the paper's size",
        "",
        *_training_lines(training),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _speed_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for row in rows:
        if "refused" in row:
            yield row["work"], row["model"], "refused", "", "", "", ""
            continue
        scale = 1000 / row["samples"]
        yield (
            row["work"],
            row["model"],
            f"{scale * row['cpu']:.3g}",
            f"{row['cpu'] / row['cpu_floor']:.2f}",
            f"{scale * row['device']:.3g}",
            f"{row['device'] / row['device_floor']:.2f}",
            f"{row['cpu'] / row['device']:.2f}",
        )


def _training_lines(training: Mapping[str, Any]) -> Iterator[str]:
    if not training:
        yield "Not run yet."
        return
    data = f" with the data set {training['data']!r}" if training["data"] else ""
    state = "complete" if training["complete"] else "not complete"
    yield (
        f"`studies/{training['study']}.toml`{data}: {state}, last measured round "
        f"{training['last_measured_round']}, {training['seconds']:.0f} s in total."
    )
    yield ""
    rows = [
        (
            figure["attack"],
            figure["contrast"],
            *(
                "–" if figure[name] is None else f"{figure[name]:.3f}"
                for name in ("value", "low", "high")
            ),
        )
        for figure in training.get("auc", [])
    ]
    if rows:
        yield from table(("attack", "non-members", "AUC", "low", "high"), rows)


# --- command -------------------------------------------------------------------------------------


def positive(number: type[int] | type[float]) -> Callable[[str], float]:
    """Return a parser of finite numbers above 0."""

    def parse(word: str) -> float:
        value = number(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{word} is not a finite number above 0")
        return value

    return parse


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu with --quick")
    parser.add_argument("--quick", action="store_true", help="few samples, to test this program")
    parser.add_argument(
        "--parts", nargs="+", choices=("kernels", "training"), default=["kernels", "training"]
    )
    parser.add_argument("--turns", type=positive(int), default=3, help="timed runs per variant")
    parser.add_argument(
        "--minutes", type=positive(float), help="time limit of the training; no limit if absent"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of data sets")
    parser.add_argument("--data", help="data set instead of CIFAR-100, such as cifar10")
    return parser.parse_args(words)


def refusal(args: argparse.Namespace) -> tuple[int, str] | None:
    """Return the exit code and the reason why the benchmark cannot run; None if it can."""
    if args.device == "cpu":
        if args.quick:
            return None
        return REFUSED, "without --quick, the CPU is compared with itself; add --quick, or use cuda"
    if not torch.cuda.is_available():
        return NO_CUDA, (
            f"this needs a CUDA device, but torch {torch.__version__} finds none on this machine; "
            "use a machine with a GPU and a CUDA build of torch, or test with --device cpu --quick"
        )
    return None


def main(words: Sequence[str] | None = None) -> int:
    args = arguments(words)
    if refused := refusal(args):
        code, reason = refused
        print(f"benchmarks.gpu: {reason}", file=sys.stderr)
        return code
    torch.set_num_threads(1)
    try:
        return run(args, device_named(args.device))
    except BadInput as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
    except OSError as error:
        print(
            f"benchmarks.gpu: {args.out} cannot be written ({error}); choose another folder "
            "with --out",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("benchmarks.gpu: interrupted; run the same command to continue", file=sys.stderr)
        return INTERRUPTED
    return REFUSED


def run(args: argparse.Namespace, device: torch.device) -> int:
    """Run all parts that the folder does not contain yet, and return the exit code."""
    results = Results(args, device)
    measurements: dict[str, Callable[[Work, Case, Data, torch.device], Json]]
    measurements = {"kernels": partial(kernel_row, turns=args.turns), "bits": bits_row}
    models = (QUICK_MODELS if args.quick else CASES) if "kernels" in args.parts else ()
    for case in [CASES[name] for name in models]:
        most = QUICK_SAMPLES if args.quick else SAMPLES.get(case.name, MAX_SAMPLES)
        data = data_for(case, CLIENTS, min(case.samples, most))
        for work in WORK:
            for part, measure in measurements.items():
                if not results.lacks(part, work, case):
                    continue
                try:
                    row = measure(work, case, data, device)
                except FedauditError as error:
                    row = {"refused": str(error)}
                results.values[part].append({"work": work.name, "model": case.name, **row})
                results.write()
    if "training" in args.parts and not results.values["training"].get("complete"):
        results.values["training"] = train_study(args, results.values["training"])
        results.write()
    if "training" in args.parts and not results.values["training"]["complete"]:
        print("benchmarks.gpu: the time is used up; run the same command to continue")
        return OUT_OF_TIME
    return COMPLETE


if __name__ == "__main__":
    sys.exit(main())
