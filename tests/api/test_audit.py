"""Audits from Python objects."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from jaxtyping import Float
from rich.console import Console
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import fedaudit as fa
from fedaudit.algorithms import FederatedTask
from fedaudit.api.federation import Federation, plan_of
from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Mean
from fedaudit.catalogue import explain_entry, format_catalogue
from fedaudit.core import errors
from fedaudit.core.errors import BadInput, FedauditError, Unsupported, called_by
from fedaudit.core.naming import DefensePart
from fedaudit.core.values import Batch, Model
from fedaudit.datasets.partitions.schemes import Counts, Quotas
from fedaudit.defenses import DEFENSES
from fedaudit.fl.algorithms.base import Server
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.observe.round import Sent
from fedaudit.plan.identity import study_key
from fedaudit.plan.values import study_from
from fedaudit.signals.outputs import Confidence
from fedaudit.study.build import build_setup

FIGURES = fa.Figures(permutations=20, blind_classifier=False)
FEW = fa.Audit(samples=60, every=2, background=0)


class Net(nn.Module):
    """From a tutorial: it knows its sizes, and flattens with view."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(30, hidden)
        self.last = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(torch.relu(self.first(x.view(x.shape[0], -1))))
        return hidden


class Blurred(Defense):
    """Noise on what the model is shown, with a setting that is no plain one."""

    def __init__(self, spreads: tuple[float, ...] = (0.1, 0.2)) -> None:
        self.spreads = spreads

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        noise = torch.randn(batch.x.shape, generator=context.rng("blur")) * self.spreads[0]
        return Batch(batch.x + noise, batch.y, batch.ids)


@dataclass(frozen=True)
class Jitter(Defense):
    """Noise on what the model is shown."""

    sigma: float = 0.1

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        noise = torch.randn(batch.x.shape, generator=context.rng("jitter"))
        return Batch(batch.x + self.sigma * noise, batch.y, batch.ids)


JITTER: Callable[..., object] = Jitter
"""The class as it is called with clients."""


class Sure(Attack):
    """An attack by its class."""

    def __init__(self) -> None:
        super().__init__((Confidence(),), Mean(), "ours", "A member's outputs are sure.")


@dataclass(frozen=True)
class EverySecond:
    """All samples to clients of even numbers, but for one of each class."""

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        quotas = np.ones((clients, len(counts)), dtype=np.int64)
        even = np.arange(0, clients, 2)
        quotas[even] = (counts - clients) // len(even) + 1
        return quotas


@dataclass(frozen=True)
class Flattering(Server):
    """Sends a client a model that is a little off."""

    client: int = 0
    by: float = 0.01

    def tamper(self, sent: Sent, client: int, round: int) -> Sent:
        if client != self.client:
            return sent
        (model,) = sent.models
        moved = {name: value + self.by for name, value in model.params.items()}
        return Sent((Model(model.architecture, moved, model.buffers),), sent.extra)


def slow(task: FederatedTask, *, share: float = 0.5) -> FedAvg:
    """FedAvg with a smaller learning rate."""
    training = task.training
    return FedAvg(
        task.architecture, type(training)(**{**vars(training), "lr": training.lr * share})
    )


def tumours() -> tuple[Float[np.ndarray, "samples columns"], Float[np.ndarray, " samples"]]:
    table = load_breast_cancer()
    return (table.data - table.data.mean(0)) / table.data.std(0), table.target


MADE: Callable[..., Federation] = Federation
ASKED: Callable[..., fa.Run] = fa.audit
COFEDMID: Callable[..., object] = fa.defenses.CoFedMID
TRAINING_OF: Callable[..., object] = fa.Training


def small(**changes: object) -> Federation:
    parts: dict[str, object] = {
        "data": fa.Samples(*tumours()),
        "clients": 4,
        "model": Net,
        "algorithm": fa.algorithms.FedAvg(rounds=2, epochs=2, batch_size=16),
        **changes,
    }
    return MADE(**parts)


def audit_of(out: Path, federation: Federation, **changes: object) -> fa.Run:
    settings: dict[str, object] = {"attacks": ["loss-series"], "audit": FEW, "figures": FIGURES}
    return ASKED(federation, out=out, **{**settings, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fa.Run:
    return audit_of(
        tmp_path_factory.mktemp("front") / "mine",
        small(defenses=[JITTER(clients=[1], sigma=0.2), Blurred()]),
        attacks=["fedmia-2", Sure(), Attack((Confidence(),), Mean(), "ours")],
        seeds=[1, 2],
        audit=fa.Audit(samples=60, every=2, background=0, keep="full"),
    )


def test_objects_and_a_study_file_give_the_same_figures(tmp_path: Path) -> None:
    training = {"rounds": 2, "epochs": 1, "batch_size": 20, "lr": 0.1}
    in_file = study_from(
        {
            "name": "same",
            "seeds": [1, 2],
            "data": {"name": "digits"},
            "partition": {"scheme": "dirichlet", "clients": 4, "options": {"beta": 1.0}},
            "model": {"name": "mlp", "options": {"hidden": "16"}},
            "algorithm": {"name": "fedprox", "options": {"mu": 0.1}},
            "training": training,
            "audit": {"fair": 90, "every": 2, "targets": [1]},
            "defense": {
                "name": "mixup",
                "options": {"alpha": 0.2},
                "clients": [2],
                "also": [
                    {
                        "name": "cofedmid",
                        "clients": [0, 1],
                        "options": {"sigma": 0.05},
                    }
                ],
            },
            "figures": {"permutations": 20, "blind_classifier": False},
            "attacks": {"fedmia-2": {}, "loss-series": {}},
        }
    )
    federation = Federation(
        fa.datasets.digits(),
        clients=fa.partitions.Dirichlet(4, beta=1.0),
        model=fa.models.MLP(hidden="16"),
        algorithm=fa.algorithms.FedProx(mu=0.1, **training),  # type: ignore[arg-type]
        defenses=[
            fa.defenses.MixUp(clients=[2], alpha=0.2),
            fa.defenses.CoFedMID(clients=[0, 1], sigma=0.05),
        ],
    )
    attacks = ["fedmia-2", "loss-series"]
    audit = fa.Audit(samples=90, every=2)
    plan = plan_of(
        federation,
        attacks=attacks,
        targets=[1],
        seeds=(1, 2),
        audit=audit,
        figures=FIGURES,
        name="same",
    )
    assert plan.study == in_file
    assert plan.objects == {}
    ours = fa.audit(
        federation,
        attacks=attacks,
        targets=[1],
        seeds=[1, 2],
        audit=audit,
        figures=FIGURES,
        out=tmp_path / "objects",
        name="same",
    )
    theirs = fa.run_study(in_file, tmp_path / "file")
    assert ours.record.content_hash == theirs.content_hash
    assert ours.record.findings == theirs.findings


class Linear(nn.Module):
    """One layer for images of any size."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(x.flatten(1))
        return outputs


def distilled(**changes: object) -> Federation:
    sizes = {"public_samples": 60, "public_epochs": 1, "private_epochs": 2, "student_epochs": 1}
    parts: dict[str, object] = {
        "data": fa.datasets.digits(),
        "classes": [7, 8, 9],
        "first_class": 10,
        "clients": 3,
        "models": [fa.models.MLP(hidden="12"), Linear],
        "algorithm": fa.algorithms.FedMD(
            public="digits",
            student="",
            rounds=2,
            **sizes,  # type: ignore[arg-type]
        ),
        **changes,
    }
    return MADE(**parts)


@pytest.mark.slow
def test_networks_per_client_match_a_study_file(tmp_path: Path) -> None:
    ours = audit_of(tmp_path / "objects", distilled(), name="same")
    in_file = study_from(
        {
            "name": "same",
            "data": {"name": "digits", "classes": [7, 8, 9], "first_class": 10},
            "partition": {"clients": 3},
            "models": [
                {"name": "mlp", "options": {"hidden": "12"}},
                {"name": f"{__name__}:Linear"},
            ],
            "algorithm": {
                "name": "fedmd",
                "options": {
                    "public": "digits",
                    "student": "",
                    "public_samples": 60,
                    "public_epochs": 1,
                    "private_epochs": 2,
                    "student_epochs": 1,
                },
            },
            "training": {"rounds": 2},
            "audit": {"fair": 60, "every": 2, "background": 0},
            "figures": {"permutations": 20, "blind_classifier": False},
            "attacks": {"loss-series": {}},
        }
    )
    theirs = fa.run_study(in_file, tmp_path / "file")
    assert ours.record.content_hash == theirs.content_hash
    nets = build_setup(in_file, 1, None).algorithm.nets
    assert [net.name for net in nets] == ["mlp", f"{__name__}:Linear"]
    same_networks = audit_of(
        tmp_path / "alike", distilled(models=[fa.models.MLP(hidden="12")]), name="same"
    )
    assert same_networks.record.content_hash != theirs.content_hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": fa.algorithms.FedProx(rounds=2)},
            r"'fedprox' averages .*, but models lists 2 networks.* such as fedmd",
        ),
        ({"model": "cnn"}, "model is 'cnn' for all clients, but models assigns different models"),
        ({"models": [Linear] * 4}, "there are 4 models but only 3 clients"),
        (
            {"algorithm": fa.algorithms.FedMD(public="digits", nets="2; 3", rounds=2)},
            "nets and the study's models both set the clients' networks",
        ),
        ({"models": [Linear]}, "or of a custom class cannot be distilled.*algorithm.student"),
        ({"models": [3]}, "a model must be a torch.nn.Module, .* got an int"),
    ],
)
def test_unusable_client_networks_are_refused_before_training(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(FedauditError, match=message):
        audit_of(tmp_path / "out", distilled(**changes))
    assert not (tmp_path / "out").exists()


def test_every_part_of_a_federation_can_be_custom(tmp_path: Path) -> None:
    federation = small(
        clients=fa.partitions.custom(4, EverySecond()),
        model=Net(8),
        algorithm=fa.algorithms.custom(slow, share=0.25, rounds=2),
    )
    tampered = fa.AuditOptions(server=Flattering(by=0.5))
    result = audit_of(tmp_path / "own", federation, options=tampered, attacks=[Sure])
    config = json.loads(json.dumps(result.record.config))
    assert config["partition"]["scheme"].endswith(":EverySecond")
    assert config["server"] == {"name": f"{__name__}:Flattering", "options": {"by": 0.5}}
    assert config["algorithm"]["options"] == {"share": 0.25}
    assert config["model"]["name"].startswith(f"{__name__}:Net#")
    sizes = [client.samples for client in result.record.clients]
    assert sizes[1] < sizes[0]
    honest = audit_of(tmp_path / "honest", federation, attacks=[Sure])
    assert honest.record.findings != result.record.findings


@pytest.mark.slow
def test_a_run_gives_its_scores_tables_plots_and_views(
    run: fa.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = run.scores("fedmia-2", target=0, seed=2)
    assert scored.ids.shape == scored.scores.shape == scored.origin.shape
    auc = fa.evaluate(scored.scores, scored.origin)[0]
    estimate = next(
        f.value
        for f in run.record.findings
        if (f.attack, f.seed, f.contrast, f.metric) == ("fedmia-2", 2, auc.contrast, auc.metric)
    )
    assert auc.value == estimate
    names = {row.name.partition("#")[0] for row in run.record.attacks}
    assert names == {"fedmia-2", f"{__name__}:Sure", "confidence+Mean"}
    assert np.array_equal(
        run.scores("confidence+Mean", seed=1).scores, run.scores(f"{__name__}:Sure", seed=1).scores
    )
    assert run.save_report().read_text().startswith("<!")
    assert run.save_report(tmp_path / "mine.html").is_file()
    rows = run.record.rows()
    assert len(rows) + len(run.record.mean_rows()) == len(run.record.estimates)
    assert {"attack", "metric", "value", "low", "high", "seed"} <= rows[0].keys()
    assert rows == run.record.frame() if find_spec("pandas") is None else True
    frame = run.to_frame()
    assert len(frame) == len(rows)  # type: ignore[arg-type]
    if find_spec("pandas") is not None:
        assert frame.notna().any().all()  # type: ignore[attr-defined]
    figure = fa.plots.roc(run, contrast="unseen")
    assert len(figure.axes[0].lines) == len(figure.axes[0].collections) + 1 == 3 + 1
    assert len(fa.plots.accuracy(run.record).axes[0].lines) == 2
    with pytest.raises(BadInput, match="there are several seeds; set seed= to one of 1, 2"):
        run.scores("fedmia-2")
    with pytest.raises(BadInput, match=r"several attacks; set attack= to one of .*, fedmia-2"):
        run.scores(seed=1)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a Jupyter kernel
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "\x1b" not in repr(run)
    first, verdict = repr(run).splitlines()
    assert first.startswith("<fedaudit.Run ")
    assert ": " in verdict
    assert "\x1b" not in str(run)
    assert str(run).startswith(verdict.partition(":")[0])
    with pytest.raises(BadInput, match=r"no attack with scores named 'fedmia'; did you mean"):
        run.scores("fedmia", seed=1)
    with pytest.raises(BadInput, match=r"attack of Run.scores takes a text or None, got 3"):
        run.scores(3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"seed of Run.scores takes a whole number or None, got 'x'"):
        run.scores("fedmia-2", seed="x")  # type: ignore[arg-type]
    with pytest.raises(
        BadInput, match=r"no argument of Run.scores named 'sed'; did you mean 'seed'"
    ):
        run.scores(sed=1)  # type: ignore[call-arg]


def test_defenses_of_the_same_clients_form_a_chain() -> None:
    part = JITTER(clients=[2, 3], sigma=0.5)
    assert part == DefensePart(Jitter, {"sigma": 0.5}, (2, 3))
    assert isinstance(Jitter(sigma=0.5), Jitter)
    plan = plan_of(
        small(defenses=[part, Blurred(), fa.defenses.GradientNoise(clients=(2, 3), sigma=1.0)]),
        name="x",
    )
    others, pair = plan.study.defense.groups(4)
    assert others.clients == (0, 1)
    assert others.parts[0].name.startswith(f"{__name__}:Blurred#")
    assert pair.clients == (2, 3)
    assert [p.name for p in pair.parts] == [f"{__name__}:Jitter", "gradient-noise"]


def test_a_run_resumes_with_the_same_objects_only(run: fa.Run) -> None:
    same = {
        "attacks": ["fedmia-2", Sure(), Attack((Confidence(),), Mean(), "ours")],
        "seeds": [1, 2],
        "audit": fa.Audit(samples=60, every=2, background=0, keep="full"),
    }
    federation = small(defenses=[JITTER(clients=[1], sigma=0.2), Blurred()])
    before = [path.stat().st_mtime_ns for path in sorted(run.folder.glob("seed-*/measured/*"))]
    resumed = audit_of(run.folder, federation, **same)
    assert resumed.record.content_hash == run.record.content_hash
    after = [path.stat().st_mtime_ns for path in sorted(run.folder.glob("seed-*/measured/*"))]
    assert after == before
    other = small(defenses=[JITTER(clients=[1], sigma=0.2), Blurred((0.3,))])
    with pytest.raises(BadInput, match=r"other settings \(defenses was .*another folder with out="):
        audit_of(run.folder, other, **same)


def test_further_attacks_need_the_objects_again(run: fa.Run, tmp_path: Path) -> None:
    further = run.attack("loss-series", Sure(), out=tmp_path / "more")
    assert {f.attack for f in further.record.findings} == {"loss-series", f"{__name__}:Sure"}
    alone = fa.Run(run.folder)
    with pytest.raises(BadInput, match=r"'samples#.*' is an object of a script .* again"):
        alone.attack("loss-series", out=tmp_path / "alone")
    federation = small(defenses=[JITTER(clients=[1], sigma=0.2), Blurred()])
    opened = fa.Run(run.folder, federation, attacks=[Sure()])
    reopened = opened.attack("loss-series", Sure(), out=tmp_path / "opened")
    assert reopened.record.content_hash == further.record.content_hash


@pytest.mark.slow
def test_objects_that_differ_in_anything_make_other_studies() -> None:
    x, y = tumours()
    torch.manual_seed(0)
    nets = [Net(8), Net(8), Net(9)]
    moved = x.copy()
    moved[300, 3] += 1e-3
    federations = [
        small(),
        small(data=(moved, y)),
        small(model=fa.named(Net, hidden=8)),
        *(small(model=net) for net in nets),
        small(defenses=Blurred((0.1,))),
        small(defenses=Blurred((0.3,))),
        small(defenses=lambda_defense(1)),
        small(defenses=lambda_defense(2)),
    ]
    keys = [key_of(federation) for federation in federations]
    assert len(set(keys)) == len(keys)
    assert key_of(small(model=nets[0])) == keys[3], "and the same object makes the same one"
    assert key_of(small(data=(x, y))) == keys[0]


def lambda_defense(weight: int) -> Defense:
    class Weighted(Defense):
        def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
            return weight * super().loss(outputs, batch, context)

    return Weighted()


def key_of(federation: Federation) -> str:
    from fedaudit.core.importing import with_registered
    from fedaudit.study.build import with_derived_settings

    plan = plan_of(federation, name="x")
    with with_registered(plan.objects):
        return study_key(with_derived_settings(plan.study))


SCRIPT = """
import torch
from sklearn.datasets import load_digits
from torch import nn
import fedaudit as fa

class MyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 20), nn.Linear(20, 10)
    def forward(self, x):
        return self.two(torch.tanh(self.one(x.view(-1, 64))))

x, y = load_digits(return_X_y=True)
federation = fa.Federation((x / 16, y), clients=4, model=MyNet,
                           algorithm=fa.algorithms.FedAvg(rounds=2, epochs=1, lr=0.1))
run = fa.audit(federation, attacks=["loss-series"], audit=fa.Audit(samples=60), workers={workers},
               figures=fa.Figures(permutations=20, blind_classifier=False), out="runs/mine")
print(run.record.findings[0].value, list(run.record.config["code"]))
"""


def carry_out(text: str, monkeypatch: pytest.MonkeyPatch, script: Path | None = None) -> None:
    """Run a script, or the code after ``python -c``, in this process."""
    main = ModuleType("__main__")
    if script:
        script.write_text(text)
        main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(text, str(script or "<string>"), "exec"), vars(main))


@pytest.mark.parametrize("way", ["script", "-c"])
@pytest.mark.slow
def test_audits_of_scripts_and_of_python_c_resume(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, script = SCRIPT.replace("{workers}", "1"), tmp_path / "mine.py"
    monkeypatch.chdir(tmp_path)
    carry_out(text, monkeypatch, script if way == "script" else None)
    first = capsys.readouterr().out
    assert "__main__:MyNet" in first
    if way == "script":
        carry_out(text, monkeypatch, script)
        stdout = capsys.readouterr().out
    else:  # by the compiled code, which another process compiles again
        command = [sys.executable, "-c", text]
        stdout = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert first == stdout
    changed = text.replace("torch.tanh", "torch.relu")
    with pytest.raises(BadInput, match=r"other settings \(code.__main__:MyNet was"):
        carry_out(changed, monkeypatch, script if way == "script" else None)


def test_other_processes_refuse_objects_of_a_script_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unsupported, match="'__main__:MyNet' is an object of this script or noteb"):
        carry_out(SCRIPT.replace("{workers}", "2"), monkeypatch)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(Unsupported, match=r"'.*<locals>.Weighted' is an object of this script"):
        audit_of(tmp_path / "x", small(defenses=lambda_defense(2)), workers=2)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: TRAINING_OF(round=3), "no setting in fedaudit.Training named 'round'; did you"),
        (lambda: TRAINING_OF(lr=-1), "lr in fedaudit.Training: it should be greater than 0"),
        (lambda: TRAINING_OF(3), "fedaudit.Training takes settings by name"),
        (
            lambda: fa.Audit(samples=3, fair=4),  # type: ignore[call-arg]
            "samples, fair and people name the same setting; give one",
        ),
        (lambda: fa.Samples([[1, 2]], ["a"]), "encode texts as numbers"),
        (lambda: COFEDMID(clients=3), r"client numbers, such as \[0, 1\]"),
        (lambda: plan(model=3), "a model must be a torch.nn.Module, a class"),
        (
            lambda: plan(model=nn.ReLU(), clients="4"),
            "clients must be a number of clients, or",
        ),
        (lambda: plan(algorithm=Net(3)), "an algorithm must be an object of fedaudit.algorithms"),
        (lambda: plan(algorithm=None), "an algorithm must be an object .*; got None"),
        (lambda: plan(data=3), "a data set must be samples, an object of fedaudit.datasets"),
        (lambda: plan(defenses=3), "a defense must be an object of fedaudit.defenses"),
        (lambda: plan(training=fa.Training(rounds=3)), "rounds is set by algorithm and by"),
        (lambda: plan(model=fa.named(Net, hidden=[3])), "hidden of the model .* is a list"),
        (lambda: ASKED(small(), attacks=[3]), "an attack must be a catalogue name, or"),
        (lambda: fa.audit(small(), attacks=["fedmia2"]), "did you mean 'fedmia-2'"),
        (lambda: ASKED(small(), seeds="1"), "seeds must be whole numbers"),
        (lambda: fa.audit(small(), targets=[4]), "4"),
        (lambda: fa.audit(small(model=fa.named(Net, width=3))), "named 'width'"),
        (lambda: fa.Run("nowhere"), "nowhere has no record"),
        (lambda: plan_of(small(), attacks=[], name="x"), "attacks is empty"),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(FedauditError, match=message) as refused:
        ask()
    assert "--" not in str(refused.value)
    assert "pydantic" not in str(refused.value)


def plan(**changes: object) -> object:
    return plan_of(small(**changes), name="x")


def test_every_defense_is_public() -> None:
    for make in DEFENSES.values():
        assert getattr(fa.defenses, make.__name__) is make
    assert all(getattr(fa, name) is not None for name in dir(fa))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that brings an attack, and misspells a group."""
    from fedaudit.core import importing

    (tmp_path / "theirs_of_test.py").write_text(
        "from fedaudit.attacks.base import Attack\n"
        "from fedaudit.attacks.rules import Mean\n"
        "from fedaudit.signals.outputs import Confidence\n"
        "sure = Attack((Confidence(),), Mean(), 'theirs', 'Sure outputs.')\n"
    )
    info = tmp_path / "theirs-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[fedaudit.attacks]\ntheir-sure = theirs_of_test:sure\n"
        "[fedaudit.defence]\nnothing = theirs_of_test:sure\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importing._entry_points.cache_clear()
    yield tmp_path
    importing._entry_points.cache_clear()
    sys.modules.pop("theirs_of_test", None)


def test_a_package_brings_parts_that_are_imported_when_used(package: Path, tmp_path: Path) -> None:
    from fedaudit.core.importing import installed_entry_points, package_of, unknown_group_warnings

    (entry,) = installed_entry_points("attack").values()
    assert package_of(entry) == "theirs 1.2"
    assert unknown_group_warnings() == [
        "theirs 1.2 has entry points in the unknown group 'fedaudit.defence'; did it mean "
        "'fedaudit.defenses'?"
    ]
    assert "theirs_of_test" not in sys.modules
    with pytest.raises(BadInput, match=r"did you mean 'their-sure'.*did it mean 'fedaudit.defen"):
        fa.audit(small(), attacks=["their-sur"], out=tmp_path / "x")
    printed = StringIO()
    Console(width=300, file=printed).print(format_catalogue())
    assert re.search(r"their-sure .*From theirs 1.2: theirs_of_test:sure", printed.getvalue())
    assert "did it mean 'fedaudit.defenses'?" in printed.getvalue()
    assert "From theirs 1.2" in explain_entry("their-sure")
    assert "theirs_of_test" not in sys.modules
    result = audit_of(tmp_path / "run", small(), attacks=["their-sure", Sure()])
    assert np.array_equal(
        result.scores("their-sure").scores, result.scores(f"{__name__}:Sure").scores
    )
    assert "theirs_of_test" in json.dumps(result.record.config["code"])


@pytest.mark.parametrize(
    ("setting", "argument"),
    [
        ("audit.samples", "audit.samples"),
        ("training.rounds", "rounds"),
        ("defense.options.sigma", "defenses.sigma"),
        ("data.name", "data"),
        ("data.classes", "classes"),
        ("partition.clients", "clients"),
        ("partition.samples_per_client", "clients.samples_per_client"),
        ("samples.features", "features"),
        ("samplers.features", "samplers.features"),
    ],
)
def test_errors_name_settings_as_the_caller_writes_them(setting: str, argument: str) -> None:
    assert errors.format_setting(setting) == setting
    with called_by("objects"):
        assert errors.format_setting(setting) == argument


@pytest.mark.parametrize(
    ("changes", "option_name"),
    [
        ({"shadow": fa.Shadow()}, "shadow"),
        ({"pool": "runs/pool"}, "pool"),
        ({"engine": "ray"}, "engine"),
        ({"server": Flattering(by=0.5)}, "server"),
    ],
)
def test_options_of_audits_of_federations_are_refused_for_games(
    changes: dict[str, object], option_name: str, tmp_path: Path
) -> None:
    options = fa.AuditOptions(**changes)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=f"{option_name}= applies only to federations, not to games"):
        fa.audit(fa.Games("digits"), options=options, out=tmp_path)


def test_options_are_given_as_one_object(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"options of audit takes an AuditOptions or None, got"):
        ASKED(small(), options={"about": "mine"}, out=tmp_path)


def test_an_attack_that_is_not_constructed_is_refused_with_its_call() -> None:
    federation = fa.Federation("digits", clients=4)
    with pytest.raises(BadInput, match=r"construct it: LossSeries\(\)$"):
        fa.audit(federation, attacks=[fa.attacks.LossSeries])  # type: ignore[list-item]
    with pytest.raises(BadInput, match=r"such as FedMIA2\(\); got a whole number$|got an? \w+"):
        fa.audit(federation, attacks=[3])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["algorithms", "metrics", "partitions", "plots", "tasks", "views"])
def test_completion_shows_public_names_only(name: str) -> None:
    package = getattr(fa, name)
    assert dir(package) == sorted(package.__all__)


def test_an_algorithm_class_raises_with_advice() -> None:
    unfinished: object = fa.algorithms.FedAvg
    with pytest.raises(BadInput, match=r"FedAvg is a class; construct it: FedAvg\(\)"):
        fa.Federation("digits", algorithm=unfinished)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0}, "clients of Federation takes a whole number from 2 to 1,000,000, got 0"),
        ({"clients": fa.partitions.Dirichlet}, "construct it: Dirichlet(10)"),
        ({"model": 3}, "a model must be a torch.nn.Module, a class or function that returns one"),
        ({"model": "mpl"}, "no model named 'mpl'; did you mean 'mlp'?"),
        ({"models": [Linear, 3]}, "a model must be a torch.nn.Module"),
        ({"task": "x"}, "no task named 'x'"),
        ({"algorithm": "x"}, "no algorithm named 'x'; `fedaudit list algorithms`"),
        ({"defenses": 3}, "a defense must be an object of fedaudit.defenses, "),
        ({"defenses": ["mixup", "x"]}, "no defense named 'x'"),
        ({"training": 3}, "training must be fedaudit.Training(...), got an int"),
        ({"shift": fa.Risk()}, "shift must be fedaudit.Shift(...), got fedaudit.Risk"),
        ({"classes": "a"}, "classes of Federation must be whole numbers, such as [0, 1], got 'a'"),
        ({"classes": [-1]}, "classes of Federation takes a list, each entry a whole number"),
        ({"first_class": "1"}, "first_class of Federation takes a whole number"),
        ({"clientz": 3}, "no argument of Federation named 'clientz'; did you mean 'clients'?"),
    ],
)
def test_a_federation_is_checked_when_it_is_constructed(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        MADE("digits", **arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": "x"}, "no extractor named 'x'; known: "),
        (
            {"features": 3},
            "an extractor must be a catalogue name, or a function",
        ),
        ({"mechanism": "bitrandd"}, "did you mean 'bitrand'"),
        ({"defense": 3}, "a defense must be an object of fedaudit.defenses, "),
        ({"clients": -1}, "clients of Games takes a whole number from 0"),
        ({"game": 3}, "game must be fedaudit.Game(...), got an int"),
        ({"variants": {"a": 3}}, "variant 'a' of Games takes a dictionary, got 3"),
        ({"grid": 3}, "grid of Games takes a dictionary or a list, each entry a dictionary"),
        ({"servants": 3}, "no argument of Games named 'servants'; did you mean 'servers'"),
    ],
)
def test_games_are_checked_when_they_are_constructed(
    arguments: dict[str, object], message: str
) -> None:
    games: Callable[..., object] = fa.Games
    with pytest.raises(BadInput) as refused:
        games("digits", **arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "x"}, "there is no engine named 'x'; give"),
        (
            {"engine": 3},
            'engine must be "local", "ray" or an object of fedaudit.engines, got',
        ),
        ({"shadow": 3}, "shadow must be fedaudit.Shadow(...), got an int"),
        ({"metrics": "x"}, "no metric named 'x'; known: "),
        ({"view": "x"}, "no view named 'x'; known: "),
        (
            {"server": 3},
            "a server must be a subclass of fedaudit.fl.algorithms.base.Server, ",
        ),
        ({"pool": 3}, "pool of AuditOptions takes a Path or a text or None, got 3"),
        ({"enginee": "ray"}, "no argument of AuditOptions named 'enginee'; did you mean 'engine'?"),
    ],
)
def test_options_are_checked_when_they_are_constructed(
    arguments: dict[str, object], message: str
) -> None:
    options: Callable[..., object] = fa.AuditOptions
    with pytest.raises(BadInput) as refused:
        options(**arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targtes": 3}, "no argument of audit named 'targtes'; did you mean 'targets'?"),
        ({"workers": "x"}, "workers of audit takes a whole number"),
        ({"device": 3}, "device of audit takes a text, got 3"),
        ({"out": 3}, "out of audit takes a Path or a text or None, got 3"),
        (
            {"targets": 3, "audit": fa.Audit(targets=[2])},  # type: ignore[arg-type]
            "targets is [3] and audit.targets is [2]; leave one out",
        ),
    ],
)
def test_arguments_of_an_audit_are_checked_first(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        ASKED(small(), **arguments)
    assert message in str(refused.value)


def test_the_same_targets_may_be_given_twice() -> None:
    plan = plan_of(small(), targets=2, audit=fa.Audit(targets=(2,)), name="x")
    assert plan.study.audit.targets == (2,)


def test_objects_of_a_wrong_type_raise_with_advice() -> None:
    run_file: Callable[..., object] = fa.run_study
    with pytest.raises(BadInput, match=r"takes a study such as fedaudit.read_study\(path\), got"):
        run_file("study.toml", "runs/x")
    with pytest.raises(BadInput, match="run_study needs out"):
        run_file(fa.study_from({"name": "x"}))
    for plot in (fa.plots.accuracy, fa.plots.roc):
        with pytest.raises(BadInput, match=r"got a str; open .* with fedaudit.Run\(folder\)"):
            plot("runs/x")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no view named 'global'; did you mean 'globals'"):
        fa.seen_from([], "global")
    with pytest.raises(BadInput, match=r"view is a fedaudit.views.View or the name of one"):
        fa.seen_from([], 3)  # type: ignore[arg-type]
    assert list(fa.seen_from([], "globals")) == []


def test_a_run_resumes_with_networks_of_the_same_initial_weights_only(tmp_path: Path) -> None:
    audit_of(tmp_path / "x", small(model=Net(8)))
    with pytest.raises(BadInput, match=r"Net' with other initial weights .*torch.manual_seed"):
        audit_of(tmp_path / "x", small(model=Net(8)))


def test_a_path_is_refused_with_the_function_that_runs_a_study_file() -> None:
    with pytest.raises(BadInput, match=r"fedaudit.run_study\(fedaudit.read_study\(path\), out\)"):
        ASKED("study.toml")
