"""One sample in a file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedaudit as fa
from fedaudit.api.matching import AuditedSamples, unit_of
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.datasets.formats.single import read_sample


def features_in(path: Path, shape: tuple[int, ...] = ()) -> np.ndarray:
    features = read_sample(path, shape).features
    assert features is not None
    return features


def test_tables_may_name_their_columns_and_have_a_label(tmp_path: Path) -> None:
    path = tmp_path / "row.csv"
    path.write_text("age,label,weight\n40.5,2,80\n")
    sample = read_sample(path)
    assert (features_in(path).tolist(), sample.label) == ([40.5, 80.0], 2)
    assert sample.cells == {"age": "40.5", "label": "2", "weight": "80"}
    path.write_text("40.5,80\n\n")
    assert (features_in(path).tolist(), read_sample(path).label) == ([40.5, 80.0], None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("row.csv", "age,ward\n40,\n"),
        ("row.csv", "\ufeffage; ward\n40;\n"),
        ("row.json", '{"age": "40", "ward": ""}'),
    ],
)
def test_rows_of_a_table_have_a_value_for_each_column(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    sample = read_sample(tmp_path / name)
    assert (sample.features, sample.cells) == (None, {"age": "40", "ward": ""})


def test_json_is_a_list_or_an_object_with_a_label(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_text("[[1, 2], [3, 4]]")
    assert features_in(path).tolist() == [[1, 2], [3, 4]]
    path.write_text(json.dumps({"features": [1.5], "label": 3}))
    assert read_sample(path).label == 3


def test_arrays_keep_their_type(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.savez(tmp_path / "a.npz", x=pixels, y=4)
    features = features_in(tmp_path / "a.npz")
    assert features.dtype == np.uint8
    assert features.tolist() == pixels.tolist()
    assert read_sample(tmp_path / "a.npz").label == 4


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_pictures_have_the_channels_and_size_that_models_take(
    channels: int, mode: str, tmp_path: Path
) -> None:
    pixels = np.arange(16 * channels, dtype=np.uint8).reshape(4, 4, channels)
    Image.fromarray(pixels.squeeze(), mode).save(tmp_path / "a.png")
    same = features_in(tmp_path / "a.png", (channels, 4, 4))
    assert same.tolist() == pixels.tolist()
    assert features_in(tmp_path / "a.png", (channels, 2, 2)).shape == (2, 2, channels)


def test_a_picture_of_sixteen_bits_is_found_among_the_audited_samples(tmp_path: Path) -> None:
    levels = np.arange(1200, dtype=np.uint16).reshape(12, 10, 10) * 40
    for index, level in enumerate(levels):
        (tmp_path / "scans" / str(index % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(level).save(tmp_path / "scans" / str(index % 2) / f"{index}.png")
    source = fa.datasets.images(tmp_path / "scans", grey=True, standardise=False)
    dataset = source.read(1)
    scans = dataset.samples(torch.arange(len(dataset)))
    audited = AuditedSamples(
        [scans.features], scans.labels, scans.ids.numpy(), "", scans.ids.numpy()
    )
    sample = read_sample(tmp_path / "scans" / "0" / "2.png", (1, 10, 10))
    unit = unit_of(sample, audited)
    assert torch.equal(scans.features[unit, 0], torch.from_numpy(levels[2] / 65535).float())
    Image.fromarray(levels[0].astype(np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(BadInput, match="training pictures; give the sample's row number"):
        read_sample(tmp_path / "a.tif", (1, 10, 10))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "1", r"ends in '.txt'; give a .npz file"),
        ("a.csv", "1,2\n3,4\n", "has 2 rows of values"),
        ("a.csv", "", "has 0 rows of values"),
        ("a.csv", "a,a\nc,d\n", "names a column twice"),
        ("a.json", "{}", "has no list of numbers"),
        ("a.json", '{"age": [1]}', "has a list as the value of the column 'age'"),
        ("a.json", '{"x": [1], "y": "1"}', "has no list of numbers"),
        ("a.json", "[[1], [1, 2]]", "is not one sample"),
        ("a.json", "[" * 100_000, "is not one sample"),
        ("a.json", "[1" + " " * 1_000_001 + "]", "the limit for one sample"),
        ("a.npz", "no archive", "cannot be read as .npz"),
        ("a.png", "no picture", "is a picture, and the models take features of shape"),
    ],
)
def test_files_that_hold_no_sample_are_refused(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(FedauditError, match=message):
        read_sample(tmp_path / name)


def test_arrays_without_numbers_and_missing_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=["text"])
    with pytest.raises(BadInput, match="no numbers in x"):
        read_sample(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=[1.0], y=[1, 2])
    with pytest.raises(BadInput, match=r"a label of shape \(2,\)"):
        read_sample(tmp_path / "b.npz")
    with pytest.raises(BadInput, match="does not exist"):
        read_sample(tmp_path / "c.npz")
