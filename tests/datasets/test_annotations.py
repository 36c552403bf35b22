"""The folders of Tiny-ImageNet, whose validation part has its classes in a text file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.datasets.dataset import Dataset

CLASSES = ("n01443537", "n01629819", "n01641577")
VALIDATION = (2, 0, 1, 1, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures whose red level is that of their class."""
    for label, name in enumerate(CLASSES):
        place = tmp_path / "train" / name / "images"
        place.mkdir(parents=True)
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("a\t0\t0\t9\t9\n")
        for number in range(4):
            picture(place / f"{name}_{number}.JPEG", label)
    place = tmp_path / "val" / "images"
    place.mkdir(parents=True)
    for number, label in enumerate(VALIDATION):
        picture(place / f"val_{number}.JPEG", label)
    annotate(tmp_path, [f"val_{n}.JPEG\t{CLASSES[c]}\t0\t9" for n, c in enumerate(VALIDATION)])
    (tmp_path / "test" / "images").mkdir(parents=True)
    picture(tmp_path / "test" / "images" / "test_0.JPEG", 1)
    return tmp_path


def picture(path: Path, label: int) -> None:
    Image.new("RGB", (8, 8), (40 + 80 * label, 0, 0)).save(path, quality=100)


def annotate(folder: Path, lines: list[str]) -> None:
    (folder / "val" / "val_annotations.txt").write_text("".join(f"{line}\n" for line in lines))


def read(folder: Path) -> Dataset:
    return fa.datasets.images(folder, standardise=False).read(seed=1)


def levels(dataset: Dataset) -> list[int]:
    """Classes by the red level of each test picture."""
    return [round((float(x[0].mean()) * 255 - 40) / 80) for x in dataset.test.features]


def test_annotated_pictures_are_the_test_part(folder: Path) -> None:
    (folder / "val" / "images" / ".DS_Store").write_bytes(b"")
    dataset = read(folder)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (12, 5, 3)
    assert dataset.test.labels.tolist() == levels(dataset) == list(VALIDATION)


def test_a_test_part_with_classes_takes_precedence(folder: Path) -> None:
    place = folder / "test" / CLASSES[1]
    place.mkdir()
    picture(place / "a.png", 1)
    (folder / "test" / "images" / "test_0.JPEG").unlink()
    (folder / "test" / "images").rmdir()
    dataset = read(folder)
    assert dataset.test.labels.tolist() == levels(dataset) == [1]


def add_line(line: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / "val" / "val_annotations.txt").open("a") as file:
            file.write(line)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_line("val_9.JPEG\tn0\n"), "line 6 .* the class 'n0'"),
        (add_line("val_1.JPEG\tn01443537\n"), "line 6 .* the picture 'val_1.JPEG'"),
        (add_line("no tabulator\n"), "line 6"),
        (add_line("val_9.JPEG\tn01443537\n"), "differ in 1 pictures, such as 'val_9.JPEG'"),
        (add_line("../images/val_1.JPEG\tn01443537\n"), "differ in 1 pictures"),
        (lambda folder: annotate(folder, []), "differ in 5 pictures"),
        (
            lambda folder: (folder / "val" / "val_annotations.txt").write_bytes(b"\xff"),
            "cannot be read",
        ),
    ],
)
def test_annotations_that_do_not_match_are_refused(
    folder: Path, change: Callable[[Path], None], message: str
) -> None:
    change(folder)
    with pytest.raises(BadInput, match=message):
        read(folder)


def test_a_link_to_the_pictures_is_refused(folder: Path) -> None:
    (folder / "val" / "images").rename(folder.parent / f"{folder.name}-elsewhere")
    (folder / "val" / "images").symlink_to(folder.parent / f"{folder.name}-elsewhere")
    with pytest.raises(BadInput, match="is a link to a folder"):
        read(folder)
