"""The study files of the repository can be started."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedaudit.core.pretrained import pretrained_file
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import NO_CLIENT
from fedaudit.datasets.dataset import Dataset, number_samples, prepare_for_task, select_classes
from fedaudit.datasets.partitions.shifts import SHIFTS
from fedaudit.defenses.ldp import LocalDP
from fedaudit.extensions.examples import KnownSplit
from fedaudit.plan.assignment import GroupedData, draw_assignment, shifted_groups
from fedaudit.plan.file import read_studies
from fedaudit.plan.parts import Parts, Setup
from fedaudit.study.build import build_setup

FOLDER = Path(__file__).parents[2] / "studies"
FILES = sorted(FOLDER.glob("*.toml"))
PAPER = [path for path in FILES if path.stem.startswith("cofedmid-paper")]


class Size(NamedTuple):
    shape: tuple[int, ...]
    train: int
    test: int
    classes: int


SIZES = {
    "mnist": Size((1, 28, 28), 60_000, 10_000, 10),
    "fashion_mnist": Size((1, 28, 28), 60_000, 10_000, 10),
    "cifar10": Size((3, 32, 32), 50_000, 10_000, 10),
    "cifar-100-python": Size((3, 32, 32), 50_000, 10_000, 100),
    "tiny_imagenet32": Size((3, 32, 32), 49_982, 4_998, 100),
    "emnist_letters": Size((1, 28, 28), 124_800, 20_800, 26),
    "location30": Size((446,), 4_008, 1_002, 30),
    "synthetic": Size((60,), 80_000, 20_000, 10),
    "adult": Size((108,), 32_561, 16_281, 2),
    "kjv": Size((96,), 24_665, 6_167, 66),
    "fortunes": Size((32,), 5_545, 1_387, 14),
}
TOKENS = ("kjv", "fortunes")
NEEDS_PACKAGES = {
    "text-minilm-lora": "peft",
    "projres-minilm-lora": "peft",
    "fedmia-diffusion-tiny": "diffusers",
    "fedmia-diffusion-cifar10": "diffusers",
}
"""What the data sets of the studies are like; their pictures are not needed to resolve a study."""


EVALUATED = {"mnist"}
"""Data sets on whose pictures a study evaluates a model before the first round."""
GROUPS = {"sex": ("Female", "Male"), "race": ("White", "Black", "Other")}


def features(name: str, count: int) -> torch.Tensor:
    shape = (count, *SIZES[name].shape)
    if name in TOKENS:
        return torch.ones(shape, dtype=torch.int32)
    if name in EVALUATED:
        return torch.zeros(()).expand(shape)
    return torch.zeros(shape, device="meta")


@lru_cache
def blank(name: str, group: str = "") -> Dataset:
    """A data set of that size with labels in turn, and pictures that take no memory."""
    size, groups = SIZES[name], GROUPS.get(group, ())
    train, test = (torch.arange(n) % size.classes for n in (size.train, size.test))
    return Dataset(
        name,
        number_samples(features(name, len(train)), train),
        number_samples(features(name, len(test)), test, first=len(train)),
        size.classes,
        "none",
        # Not in step with the labels.
        torch.arange(size.train + size.test) // 3 % len(groups) if groups else None,
        groups,
    )


def as_it_is(images: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
    return images


studies_of = lru_cache(read_studies)
"""The study of a file and its variants, read once for all tests."""


@lru_cache
def resolved(path: Path) -> dict[str, Setup]:
    """The study of a file and its variants, each resolved to the run of its first seed."""
    return {study.name: build_setup(study, study.seeds[0], None) for study in studies_of(path)}


_dealt: dict[str, GroupedData] = {}


def dealt_once(parts: Parts, dataset: Dataset, seed: int) -> GroupedData:
    """Variants of a study have the same data nearly always."""
    study = parts.study
    key = repr((study.data, study.partition, study.audit, study.shift, len(dataset), seed))
    if key not in _dealt:
        _dealt[key] = shifted_groups(
            study, dataset, draw_assignment(study, parts.partition, dataset, seed), seed
        )
    return _dealt[key]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaudit.study.build._assign_data", dealt_once)
    for place in ("study.build", "plan.algorithm"):
        monkeypatch.setattr(f"fedaudit.{place}.load", _blank)
    for kind in SHIFTS:
        monkeypatch.setitem(SHIFTS, kind, as_it_is)
    monkeypatch.setattr(LocalDP, "prepare", lambda mechanism, data, client_context: data)


def _blank(
    name: str,
    task: Task = CLASSIFICATION,
    classes: Sequence[int] = (),
    first: int = 0,
    /,
    **options: object,
) -> Dataset:
    dataset = select_classes(blank(name, str(options.get("group", ""))), classes, first=first)
    if options.get("people"):
        people = torch.arange(len(dataset)) // 7 % int(str(options["people"]))
        dataset = replace(dataset, person=people)
    if task.name == "denoising":  # inputs are stored next to their labels
        train, test = (
            part.replace(features=torch.zeros(1).expand(part.features.shape))
            for part in (dataset.train, dataset.test)
        )
        dataset = replace(dataset, train=train, test=test)
    return prepare_for_task(dataset, task)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_studies_match_their_file_name_and_have_a_description(path: Path) -> None:
    base = studies_of(path)[0]
    assert base.name == path.stem
    assert base.about
    assert base.hours


def test_the_study_of_fedmias_settings_changes_one_setting_at_a_time() -> None:
    base, *points = studies_of(FOLDER / "fedmia-settings.toml")
    assert len(points) == 10
    assert base.training.epochs == 1
    for point in points:
        changed = {
            (table, name)
            for table in ("data", "partition", "model", "training", "figures")
            for name in type(getattr(base, table)).model_fields
            if getattr(getattr(point, table), name) != getattr(getattr(base, table), name)
        }
        settings = {name for _, name in changed} - {"options"}
        assert len(settings) == 1, point.name
        assert point.audit.samples <= 3 * point.partition.samples_per_client


def test_the_single_epoch_study_differs_only_in_epochs() -> None:
    names = ("cofedmid-letters-epoch", "cofedmid-letters")
    single_epoch, three = (studies_of(FOLDER / f"{name}.toml") for name in names)
    for study, other in zip(single_epoch, three, strict=True):
        assert (study.training.epochs, other.training.epochs) == (1, 3)
        assert study.training.model_copy(update={"epochs": 3}) == other.training
        assert (study.defense, study.audit, study.attacks) == (
            other.defense,
            other.audit,
            other.attacks,
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_study_and_all_its_variants_resolve_to_runs(path: Path) -> None:
    if path.stem in NEEDS_PACKAGES:
        pytest.importorskip(NEEDS_PACKAGES[path.stem])
    studies = studies_of(path)
    for study in studies:
        if study.pretraining and not pretrained_file(study.pretrained_name).is_file():
            pytest.skip("the first run of the study trains the weights that the network loads")
    for study in studies:
        run = resolved(path)[study.name]
        assert run.attacks, study.name
        assert run.measured_rounds[-1] <= study.training.rounds
        assert len(run.assignment.clients) == study.partition.clients


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_cofedmid_paper_studies_have_the_published_sizes(
    path: Path,
) -> None:
    run, *variants = resolved(path).values()
    owners = run.assignment.audit.owner
    counts = [(owners == client).sum() for client in (0, NO_CLIENT, *range(1, 10))]
    assert counts == [5000, 1000, *[1000] * 9]
    assert set(run.assignment.sizes.values()) == {5000}
    assert run.measured_rounds == tuple(range(10, 101, 10))
    assert {"loss-series", "avg-cosine", "fedmia-1", "fedmia-2", "fta-c", "fta-l", "seqmia"} <= set(
        run.attacks
    )
    split = run.extension(KnownSplit)
    assert split is not None
    assert int(split.known.is_member.sum()) == 2000
    assert not set(split.known.samples.ids.tolist()) & set(
        run.assignment.audit.samples.ids.tolist()
    )
    defended = [len(variant.defenses) for variant in variants]
    assert defended == [2] * 7 + [5] * 7 + [10] * 4
