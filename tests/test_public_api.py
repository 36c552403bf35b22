"""Public names: settings, types and examples."""

import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import fedaudit as fa
from fedaudit.algorithms import ALGORITHMS, TRAINING, FederatedAlgorithm
from fedaudit.api.references import attack_settings, defense_settings, registering
from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS, base
from fedaudit.core import errors
from fedaudit.core.errors import BadInput
from fedaudit.core.naming import NamedPart, PartitionPart
from fedaudit.datasets.catalog import SOURCES
from fedaudit.datasets.dataset import DataSource
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses import DEFENSES
from fedaudit.models import MODELS, ConfiguredModel
from fedaudit.plan.sections import TrainingSection

CALLS = Path(__file__).parent / "typed_calls"
ROOT = CALLS.parents[1]

Defaults = dict[str, object]
REQUIRED = "required"


def options_of(function: Callable[..., object], *others: str) -> Defaults:
    """Return the defaults of a function's settings by name."""
    return {
        name: REQUIRED if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in others
    }


def fields_of(kind: type, *others: str) -> Defaults:
    return {
        field.name: REQUIRED if field.default is MISSING else field.default
        for field in fields(kind)
        if field.name not in others
    }


def test_every_algorithm_is_public_with_training_settings() -> None:
    classes = {kind.catalogue_name: kind for kind in FederatedAlgorithm.__subclasses__()}
    for name, kind in classes.items():
        assert fields_of(kind, *TRAINING) == options_of(ALGORITHMS[name], "task")
        assert kind.__name__ in fa.algorithms.__all__
    training = {name: field.default for name, field in TrainingSection.model_fields.items()}
    assert fields_of(FederatedAlgorithm) == training


def test_every_partition_of_the_catalogue_is_public() -> None:
    public = {name: getattr(fa.partitions, name) for name in fa.partitions.__all__}
    for name, kind in PARTITIONS.items():
        assert kind in public.values()
        assert kind.catalogue_name == name  # type: ignore[attr-defined]


@pytest.mark.parametrize(("package", "catalogue"), [(fa.datasets, SOURCES), (fa.models, MODELS)])
def test_every_data_set_and_model_of_the_catalogue_is_public(
    package: ModuleType, catalogue: Mapping[str, type[ConfiguredModel] | type[DataSource]]
) -> None:
    public = [getattr(package, name) for name in package.__all__]
    for name, kind in catalogue.items():
        assert kind in public
        assert kind.catalogue_name == name
        assert {field.name for field in fields(kind) if field.default is MISSING} <= {
            "path",
            "name",
        }


def test_a_package_imports_only_used_modules() -> None:
    script = """
import sys
import fedaudit as fa
fa.datasets.npz("a.npz"), fa.models.MLP()
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {n.rpartition(".")[2] for n in done.stdout.split() if n.startswith("fedaudit.")}
    assert {"npz", "mlp"} <= loaded
    assert not loaded & {"idx", "cifar", "images", "hf", "digits", "synthetic", "cnn", "resnet18"}


def test_constructors_of_attacks_have_the_settings_of_rule_and_signal() -> None:
    public = {name: getattr(fa.attacks, name) for name in fa.attacks.__all__ if name != "Attack"}
    by_name = {construct().name: construct for construct in public.values()}
    assert doctest.testmod(base).failed == 0
    assert len(by_name) == len(public), "two attacks have one name"
    assert by_name.keys() == (ATTACKS | SOURCE_ATTACKS).keys()
    for name, construct in by_name.items():
        attack = (ATTACKS | SOURCE_ATTACKS)[name]
        assert construct() == attack
        assert options_of(construct) == attack.settings()
        for setting in attack.settings():
            assert f"    {setting}: " in (construct.__doc__ or "")


def test_attack_objects_serialise_to_name_and_changed_settings() -> None:
    register = registering({})
    attacks = [fa.attacks.FedMIA2(outlier_sigmas=2.0), fa.attacks.SIA(), "loss-series"]
    assert attack_settings(attacks, register) == {
        "fedmia-2": {"outlier_sigmas": 2.0},
        "sia": {},
        "loss-series": {},
    }
    changed = replace(fa.attacks.FedMIA2(), rule=fa.attacks.LossSeries().rule)
    (name,) = attack_settings([changed], register)
    assert name.startswith("gradient-cosine+Mean#")


def test_one_attack_with_two_settings_is_refused_unless_each_has_a_name() -> None:
    plain, adjusted = fa.attacks.FedMIA2(), fa.attacks.FedMIA2(leave_one_out=True)
    with pytest.raises(BadInput, match="'fedmia-2' twice, with different settings; give"):
        attack_settings([plain, adjusted], registering({}))
    assert len(attack_settings({"plain": plain, "loo": adjusted}, registering({}))) == 2
    assert attack_settings([plain, plain], registering({})) == {"fedmia-2": {}}
    assert attack_settings({"fedmia-2": plain}, registering({})) == {"fedmia-2": {}}


def test_part_has_the_name_and_the_changed_settings() -> None:
    part = fa.algorithms.FedProx(mu=0.1, rounds=30, lr=0.5).named_part()
    assert (part.what, part.options, part.training) == ("fedprox", {"mu": 0.1}, {"lr": 0.5})
    assert fa.partitions.Dirichlet(4, beta=1.0, minimum=1).named_part() == PartitionPart(
        "dirichlet", {"beta": 1.0}, 4
    )
    assert fa.models.CNN(kernel=5, padding=2).named_part() == NamedPart("cnn", {"padding": 2})
    assert fa.datasets.digits(test_share=0.2).named_part().options == {}


MODULES = (fa.algorithms, fa.attacks, fa.partitions, fa.datasets, fa.models, fa.tasks)
BASES = {"ConfiguredModel", "DataSource", "Dataset", "FederatedAlgorithm", "FederatedTask"}
BASES |= {"Partition", "PartitionScheme"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_example_of_the_public_api_runs(module: ModuleType) -> None:
    public = [getattr(module, name) for name in {*module.__all__} - BASES]
    named = [part for part in public if callable(part)]
    assert [part for part in named if ">>> " not in (part.__doc__ or "")] == []
    for defining in {module, *(sys.modules[part.__module__] for part in named)}:
        assert doctest.testmod(defining).failed == 0


def test_every_defense_takes_its_clients_and_has_an_example_that_runs() -> None:
    makers = {make.__name__: make for make in DEFENSES.values() if make is not fa.defenses.Defense}
    assert {"ConfiguredDefense", "Defense", *makers} == set(fa.defenses.__all__)
    for name, make in makers.items():
        assert getattr(fa.defenses, name) is make
        assert ">>> " in (make.__doc__ or "")
        assert name == "imported_filter" or "clients" in inspect.signature(make).parameters
    for module in {sys.modules[make.__module__] for make in makers.values()}:
        assert doctest.testmod(module).failed == 0


TOP_LEVEL = {
    name: value
    for name in dir(fa)
    if not inspect.ismodule(value := getattr(fa, name)) and not isinstance(value, str)
}


def test_every_error_of_the_package_is_public_and_has_one_base() -> None:
    public = {getattr(fa.errors, name) for name in fa.errors.__all__}
    defined = {
        error
        for error in vars(errors).values()
        if inspect.isclass(error) and error.__module__ == errors.__name__
    }
    assert public == defined
    assert all(issubclass(error, fa.errors.FedauditError) for error in public)


def test_every_name_of_the_package_has_an_example() -> None:
    assert [name for name, value in TOP_LEVEL.items() if ">>> " not in (value.__doc__ or "")] == []


def test_every_name_of_the_package_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    pages = re.findall(r"automodule:: (\S+)\n   :members:(.*)", reference)
    listed = {(module, name) for module, names in pages for name in re.findall(r"\w+", names)}
    complete_modules = {module for module, names in pages if not names.strip()}
    missing = {
        name
        for name, value in TOP_LEVEL.items()
        if value.__module__ not in complete_modules
        and (value.__module__, value.__name__) not in listed
    }
    assert not missing


def test_every_member_that_the_reference_lists_exists() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    pages = re.findall(r"automodule:: (\S+)\n   :members:(.*)", reference)
    listed = [(module, name) for module, names in pages for name in re.findall(r"\w+", names)]
    assert listed
    assert [pair for pair in listed if not hasattr(import_module(pair[0]), pair[1])] == []


PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (fa, fa.metrics, fa.defenses, fa.plots, fa.views, *MODULES)
    for name in dir(module)
    if callable(getattr(module, name))
}


@pytest.mark.slow
def test_public_examples_run_in_a_new_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failed = []
    for name, member in PUBLIC.items():
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(member) or "")
        test = doctest.DocTest(examples, {}, name, None, None, None)
        if doctest.DocTestRunner().run(test).failed:
            failed.append(name)
    assert failed == []


DEFINING = sorted({value.__module__ for value in TOP_LEVEL.values()} | {"fedaudit.plots"})
DEFINING += [f"fedaudit.core.{name}" for name in ("denoising", "errors", "next_token", "tasks")]
DEFINING += ["fedaudit.core.task_catalogue", "fedaudit.fl.hooks", "fedaudit.models"]


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINING)
def test_every_example_of_the_package_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(import_module(name)).failed == 0


def test_a_defense_object_is_its_name_settings_and_clients() -> None:
    defenses = [
        fa.defenses.DPSGD(1.0, 0.5),
        fa.defenses.CoFedMID(clients=[0, 1], sigma=0.2),
        fa.defenses.GradientNoise(sigma=0.1, clients=[2]),
    ]
    assert defense_settings(defenses, registering({})) == {
        "name": "dp-sgd",
        "options": {"clip": 1.0, "noise_multiplier": 0.5},
        "chain": [],
        "clients": None,
        "also": [
            {"name": "cofedmid", "options": {"sigma": 0.2}, "chain": [], "clients": (0, 1)},
            {"name": "gradient-noise", "options": {"sigma": 0.1}, "chain": [], "clients": (2,)},
        ],
    }


@pytest.mark.slow
def test_mypy_refuses_exactly_the_incorrect_calls(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, *CALLS.glob("*.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    messages = re.findall(r"(\w+)\.py:(\d+): error: (.*)", done.stdout)
    assert [line for line in messages if line[0] != "incorrect"] == [], done.stdout
    lines = (CALLS / "incorrect.py").read_text(encoding="utf-8").splitlines()
    expected = {
        number: line.split("# E: ")[1] for number, line in enumerate(lines, 1) if "# E: " in line
    }
    errors: dict[int, str] = {int(number): text for _, number, text in messages}
    assert errors.keys() == expected.keys(), done.stdout
    assert all(expected[number] in text for number, text in errors.items()), done.stdout
