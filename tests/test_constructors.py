"""Errors of constructors in the public API."""

import doctest
import inspect
import pydoc
from collections.abc import Callable, Iterator
from inspect import Parameter
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import pytest
from torch import nn

import fedaudit as fa
from fedaudit.api.federation import plan_of
from fedaudit.core.arguments import Range, parameters
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.training.local import LocalTraining
from fedaudit.plan.base import Section
from fedaudit.tasks import Utility

PACKAGES = {
    "algorithms": fa.algorithms,
    "attacks": fa.attacks,
    "datasets": fa.datasets,
    "defenses": fa.defenses,
    "models": fa.models,
    "partitions": fa.partitions,
    "tasks": fa.tasks,
}
NO_CONSTRUCTORS = {
    # Catalogues, protocols, flags, and functions whose argument is a name of a catalogue.
    *("MODELS", "TASKS", "Partition", "OutputKind", "architecture", "architecture_from_path"),
    "Defense",  # a base without settings
    # Constructed by fedaudit, for custom algorithms and for each batch.
    *("FederatedTask", "NextTokens", "Utility"),
}


class Public(NamedTuple):
    name: str
    make: Callable[..., object]

    @property
    def typed_parameters(self) -> dict[str, Parameter]:
        """Parameters with a specific type; settings of custom parts may have any type."""
        return {
            name: parameter
            for name, parameter in parameters(self.make).items()
            if parameter.kind is not parameter.VAR_KEYWORD
            and parameter.annotation not in (object, parameter.empty)
            and parameter.default is not dict
        }

    def refusal(self, name: str, value: object) -> str:
        """Return the message of the error for a value of a setting."""
        arguments: dict[str, object] = {
            parameter.name: usable(parameter.annotation)
            for parameter in parameters(self.make).values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
        }
        by_place = [
            value if parameter.name == name else usable(parameter.annotation)
            for parameter in parameters(self.make).values()
            if parameter.kind is parameter.POSITIONAL_ONLY
        ]
        if (
            name not in self.typed_parameters
            or self.typed_parameters[name].kind is not Parameter.POSITIONAL_ONLY
        ):
            arguments[name] = value
        with pytest.raises(fa.errors.FedauditError) as refused:
            self.make(*by_place, **arguments)
        return str(refused.value)


def usable(annotation: object) -> Any:
    """Return a value that an annotation of a required parameter allows."""
    origin, within = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return [0] if "Sequence" in str(within[0]) else usable(within[0])
    if origin is tuple:
        return (fa.attacks.LossSeries().signals[0],)
    if origin is not None and origin is not type:
        return usable(within[0]) if within and origin is not Callable else print
    values_by_type: dict[object, object] = {
        str: "x",
        float: 1.0,
        int: 1,
        object: [[0.0], [1.0]],
        fa.Samples: fa.Samples([[0.0]], [0]),
        Utility: Utility("x", print),  # type: ignore[arg-type]
    }
    if annotation in values_by_type:
        return values_by_type[annotation]
    return fa.attacks.LossSeries().rule if "Rule" in str(annotation) else "x"


def wrong_values(annotation: object) -> Iterator[object]:
    """Yield values out of the range of an annotation, if it has one, and names that it lacks."""
    if get_origin(annotation) is Annotated:
        for constraint in get_args(annotation)[1:]:
            if isinstance(constraint, Range):
                ends = (constraint.ge, constraint.gt, constraint.le, constraint.lt)
                number = float if get_args(annotation)[0] is float else int
                yield from (number(end - 1) for end in ends[:2] if end is not None)  # type: ignore[operator]
                yield from (number(end + 1) for end in ends[2:] if end is not None)  # type: ignore[operator]
                yield from (end for end in (constraint.gt, constraint.lt) if end is not None)
                yield float("nan")
    if get_origin(annotation) is Literal:
        yield "no such name"


PUBLIC = [
    Public(f"{package}.{name}", getattr(module, name))
    for package, module in PACKAGES.items()
    for name in module.__all__
    if name not in NO_CONSTRUCTORS
]
every_constructor = pytest.mark.parametrize(
    "constructor", PUBLIC, ids=[constructor.name for constructor in PUBLIC]
)


@every_constructor
def test_a_value_of_another_type_is_refused_by_the_name_of_its_argument(
    constructor: Public,
) -> None:
    for name in constructor.typed_parameters:
        assert name in constructor.refusal(name, object())


@every_constructor
def test_a_value_out_of_range_is_refused_by_the_name_of_its_argument(constructor: Public) -> None:
    for name, parameter in constructor.typed_parameters.items():
        for value in wrong_values(parameter.annotation):
            assert name in constructor.refusal(name, value)


@every_constructor
def test_an_unknown_argument_is_refused_with_the_existing_ones(constructor: Public) -> None:
    if not any(p.kind is p.VAR_KEYWORD for p in parameters(constructor.make).values()):
        assert "no_such_argument" in constructor.refusal("no_such_argument", 1)


@every_constructor
def test_help_explains_every_argument(constructor: Public) -> None:
    text = pydoc.plain(pydoc.render_doc(constructor.make))
    documented = inspect.getdoc(constructor.make) or ""
    for name in parameters(constructor.make):
        assert f"    {name}: " in documented
    assert "Annotated" not in text.partition("\n\n")[0]


SECTIONS = [
    candidate
    for name in dir(fa)
    if isinstance(candidate := getattr(fa, name), type) and issubclass(candidate, Section)
]


@pytest.mark.parametrize("section", SECTIONS, ids=[section.__name__ for section in SECTIONS])
def test_a_section_shows_its_fields_and_explains_them(section: type[Section]) -> None:
    documented = inspect.getdoc(section) or ""
    fields = section.model_fields.keys()
    assert getattr(fa, section.__name__) is section
    assert set(dir(section)) - fields <= {"local"}
    assert all(f"    {name}: " in documented for name in fields)
    assert all(name in documented for name in inspect.signature(section).parameters)
    assert "Annotated" not in str(inspect.signature(section))
    with pytest.raises(fa.errors.FedauditError, match="no_such"):
        section(no_such=1)


@pytest.mark.parametrize(
    ("construct", "text"),
    [
        (lambda: fa.Audit(view="global"), "no view named 'global'; did you mean 'globals'?"),
        (lambda: fa.Audit(draw="fai"), "no draw named 'fai'; did you mean 'fair'?"),
        (lambda: fa.Audit(sampels=3), "named 'sampels'; did you mean 'samples'?"),  # type: ignore[call-arg]
        (lambda: fa.Figures(metrics=["acc"]), "no metric named 'acc'"),  # type: ignore[arg-type]
        (lambda: fa.Risk(measure="x"), "no measure of risk named 'x'"),
        (lambda: fa.Risk(low=0.9, high=0.1), "low must be below high"),
        (lambda: fa.Shift(kind="x"), "no shift named 'x'; known: attribute, brightness, rotation"),
        (lambda: fa.Shift(), "kind in fedaudit.Shift: it has no default; give a value"),  # type: ignore[call-arg]
        (lambda: fa.defenses.CoFedMID(clients=[0], m_max=1, m_min=2), "m_max is 1 and m_min is 2"),
    ],
)
def test_a_section_refuses_unknown_names_when_it_is_constructed(
    construct: Callable[[], object], text: str
) -> None:
    with pytest.raises(fa.errors.BadInput) as refused:
        construct()
    assert text in str(refused.value)
    assert ", got" not in str(refused.value)


DATA = (np.zeros((4, 2), dtype="float32"), np.array([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: fa.audit(fa.Federation(DATA), view="globals"), "audit=Audit(view=...)"),  # type: ignore[call-arg]
        (lambda: fa.audit(fa.Federation(DATA), data_dir="."), "options=AuditOptions(data_dir="),  # type: ignore[call-arg]
        (lambda: fa.audit(fa.Federation(DATA), lr=1), "federation=Federation(training=Training(lr"),  # type: ignore[call-arg]
        (lambda: fa.Federation(DATA, rounds=3), "training=Training(rounds=...)"),  # type: ignore[call-arg]
        (lambda: fa.audit(fa.Federation(DATA), clients=5), "federation=Federation(clients=...)"),  # type: ignore[call-arg]
        (lambda: fa.audit(fa.Federation(DATA), training=1), "federation=Federation(training=...)"),  # type: ignore[call-arg]
    ],
)
def test_an_argument_of_another_object_is_refused_with_its_place(
    call: Callable[[], object], remedy: str
) -> None:
    with pytest.raises(fa.errors.BadArgument) as refused:
        call()
    assert f"give {remedy}" in str(refused.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fa.AuditOptions(rounds=5),  # type: ignore[call-arg]
        lambda: fa.tasks.Task(names=3),  # type: ignore[call-arg]
        lambda: fa.audit(fa.Federation(DATA), defense="dp-sgd"),  # type: ignore[call-arg]
    ],
)
def test_no_place_is_suggested_for_other_unknown_arguments(call: Callable[[], object]) -> None:
    with pytest.raises(fa.errors.BadArgument) as refused:
        call()
    assert "=..." not in str(refused.value)


@pytest.mark.parametrize("name", ["cifar", "csv", "idx", "images", "npz", "parquet"])
def test_a_missing_file_is_named_with_the_folder_it_is_relative_to(name: str) -> None:
    source: fa.datasets.DataSource = getattr(fa.datasets, name)("nothing")
    with pytest.raises(fa.errors.BadInput, match="there is no file or folder nothing") as refused:
        source.read(seed=0)
    assert str(Path.cwd()) in str(refused.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"algorithm": fa.algorithms.FedAvg()}, "must have a network"),
        ({"algorithm": "fedavg"}, "must have a network"),
        ({"clients": {0: DATA}}, "the data of client 0 must be"),
        ({"defenses": {0: "dp-sgd"}}, "the defense of client 0 must be"),
        ({"clients": [fa.Samples(*DATA)]}, "clients must be a dictionary by client, got a list"),
        ({"defenses": [fa.defenses.MixUp(0.2)]}, "defenses must be a dictionary by client"),
    ],
)
def test_arguments_of_a_simulation_have_the_right_types(change: dict[str, Any], text: str) -> None:
    architecture = fa.models.architecture("mlp", shape=(2,), classes=2)
    right: dict[str, Any] = {
        "algorithm": FedAvg(architecture, LocalTraining()),
        "clients": {0: fa.Samples(*DATA)},
    }
    with pytest.raises(fa.errors.BadInput, match=text):
        next(fa.simulate(**right | change, rounds=1, seed=1))


def test_names_of_parts_of_other_packages_can_be_read_from_records() -> None:
    study = fa.study_from({"name": "x", "audit": {"view": "of-another-package"}})
    assert study.audit.view == "of-another-package"
    assert fa.Audit(view="module:View").view == "module:View"


def test_an_audit_shows_its_samples_by_the_name_of_their_argument() -> None:
    assert "samples=60" in repr(fa.Audit(samples=60))
    assert "fair=" not in repr(fa.Audit(samples=60))


@pytest.mark.parametrize("section", SECTIONS, ids=[section.__name__ for section in SECTIONS])
def test_the_example_of_a_section_runs(section: type[Section]) -> None:
    for example in doctest.DocTestFinder(recurse=False).find(section, module=False):
        assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: fa.algorithms.FedAvg(rounds="50"),  # type: ignore[arg-type]
            "rounds of FedAvg takes a whole number from 1 to 999,999, got '50'; omit it to "
            "use the default 30",
        ),
        (lambda: fa.algorithms.FedAvg(rounds=True), "got True"),
        (
            lambda: fa.algorithms.FedAvg(roundz=3),  # type: ignore[call-arg]
            "no argument of FedAvg named 'roundz'; did you mean 'rounds'?",
        ),
        (lambda: fa.Samples([[0.0]], [1], label=[1]), "did you mean 'labels'?"),  # type: ignore[call-arg]
        (lambda: fa.plots.roc(None, contrasts="mixed"), "did you mean 'contrast'?"),  # type: ignore[call-arg, arg-type]
        (lambda: fa.record("x", None, None, strct=True), "did you mean 'strict'?"),  # type: ignore[call-arg, arg-type]
        (
            lambda: fa.defenses.MixUp(alpha=1.0, clients=[-1]),
            "clients of MixUp takes client numbers, such as [0, 1], at least one and each only ",
        ),
        (
            lambda: fa.defenses.MixUp(alpha=1.0, mixes="legacy-label-only"),  # type: ignore[arg-type]
            "did you mean 'legacy_label_only'?",
        ),
        (lambda: fa.attacks.Attack(1, 2, 3), "signals of Attack takes a list"),  # type: ignore[arg-type]
        (lambda: fa.defenses.DPSGD(clip=1.0), "DPSGD needs noise_multiplier"),  # type: ignore[call-arg]
        (lambda: fa.models.AlexNet(width=3), "AlexNet takes no arguments"),  # type: ignore[call-arg]
    ],
)
def test_errors_state_the_allowed_values(make: Callable[[], object], text: str) -> None:
    with pytest.raises(fa.errors.BadArgument) as refused:
        make()
    assert text in str(refused.value)
    assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize(
    "base", [fa.algorithms.FederatedAlgorithm(rounds=3), fa.partitions.PartitionScheme(4)]
)
def test_constructing_a_base_class_raises_with_alternatives(base: Any) -> None:
    with pytest.raises(fa.errors.BadInput, match="is a base class; construct "):
        base.named_part()


def test_model_classes_and_task_functions_mean_their_defaults() -> None:
    federation = fa.Federation("digits", model=fa.models.MLP, task=fa.tasks.classification)  # type: ignore[arg-type]
    study = plan_of(federation, name="x").study
    assert (study.model.name, study.model.options) == ("mlp", {})
    assert study.task.name == "classification"


@pytest.mark.parametrize(
    ("federation", "text"),
    [
        (lambda: fa.Federation("digits", clients=fa.partitions.IID), "got the class IID"),  # type: ignore[arg-type]
        (
            lambda: fa.Federation("digits", algorithm=fa.algorithms.FedAvg),  # type: ignore[arg-type]
            "construct it: FedAvg()",
        ),
        (
            lambda: fa.Federation("digits", defenses=[fa.defenses.DPSGD]),
            "construct it: DPSGD(clip=..., noise_multiplier=...)",
        ),
        (lambda: fa.Federation(fa.datasets.Dataset), "could not be called"),
        (lambda: fa.Federation("digits", model=nn.Linear), "could not be called"),
    ],
)
def test_classes_with_required_arguments_are_refused_early(
    federation: Callable[[], fa.Federation], text: str
) -> None:
    start = perf_counter()
    with pytest.raises(fa.errors.BadInput) as refused:
        fa.audit(federation(), attacks="loss-series")
    assert text in str(refused.value)
    assert perf_counter() - start < 20
