import gzip
import io
import os
import pickle
import shutil
import struct
import sys
import types
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits

import fedaudit
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.datasets.arrays import from_samples
from fedaudit.datasets.catalog import FORMATS, SOURCES, load
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.generated.diabetes import _bundled_patients
from fedaudit.datasets.generated.digits import _bundled_digits
from fedaudit.datasets.hubs import hf
from fedaudit.datasets.tables.arrow import ArrowColumn
from fedaudit.datasets.tables.columns import Column, NumberColumn, text_column

Reads = Callable[..., Dataset]

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 5, 4), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 3


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDAUDIT_DATA", raising=False)


def plain(x: ndarray) -> torch.Tensor:
    return torch.from_numpy(x).to(torch.float32) / 255


def _packed(path: Path, packing: int) -> None:
    """An archive of pictures as zipfile packs it; numpy's own are stored or deflated."""
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, values in (("x", IMAGES), ("y", LABELS)):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, values)


class TestMade:
    def test_digits_are_images_of_eight_by_eight_with_mean_zero(self) -> None:
        dataset = load("digits", seed=1)
        assert dataset.train.features.shape[1:] == (1, 8, 8)
        assert len(dataset) == 1797
        assert dataset.classes == 10
        assert abs(dataset.train.features.mean().item()) < 1e-6
        assert "of the training images" in dataset.normalisation

    def test_digits_are_those_of_scikit_learn_without_its_import(self) -> None:
        images, labels = _bundled_digits()
        bunch = load_digits()
        assert np.array_equal(images, bunch.images)
        assert np.array_equal(labels, bunch.target)

    def test_diabetes_equals_scikit_learn_in_classes_of_equal_size(self) -> None:
        features, progression = _bundled_patients()
        bunch = load_diabetes(scaled=False)
        assert np.array_equal(features, bunch.data)
        assert np.array_equal(progression, bunch.target)
        dataset = load("diabetes", seed=1, progression_classes=3)
        sizes = torch.cat([dataset.train.labels, dataset.test.labels]).bincount()
        assert sizes.sum() == 442
        assert sizes.max() - sizes.min() <= 3
        assert dataset.train.features.std(dim=0, correction=0).tolist() == pytest.approx([1] * 10)

    @pytest.mark.parametrize("classes", [1, 11])
    def test_diabetes_in_too_few_or_many_classes_is_refused(self, classes: int) -> None:
        with pytest.raises(BadInput, match="progression_classes"):
            load("diabetes", progression_classes=classes)

    def test_the_digits_split_depends_on_the_seed(self) -> None:
        first, second, other = (load("digits", seed=seed) for seed in (1, 1, 2))
        assert torch.equal(first.test.features, second.test.features)
        assert not torch.equal(first.test.labels, other.test.labels)

    def test_synthetic_features_have_the_variances_of_the_paper(self) -> None:
        dataset = load("synthetic", seed=0, samples=40_000)
        expected = torch.arange(1, 61) ** -1.2
        assert len(dataset.train) == pytest.approx(32_000, abs=10)
        assert (dataset.train.features.var(dim=0) / expected - 1).abs().max() < 0.05

    def test_synthetic_labels_follow_from_the_features_linearly(self) -> None:
        from sklearn.linear_model import LogisticRegression

        dataset = load("synthetic", seed=0, samples=2000, dimensions=5, classes=3)
        model = LogisticRegression(C=1e3, max_iter=2000)
        model.fit(dataset.train.features.numpy(), dataset.train.labels.numpy())
        assert model.score(dataset.test.features.numpy(), dataset.test.labels.numpy()) > 0.95


class TestNpz:
    def test_train_and_test_parts_of_a_file_are_kept(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "own.npz", x_train=IMAGES[:8], y_train=LABELS[:8],
                 x_test=IMAGES[8:], y_test=LABELS[8:])  # fmt: skip
        dataset = load("own", data_dir=tmp_path, standardise=False)
        assert torch.equal(dataset.train.features, plain(IMAGES[:8, None]))
        assert dataset.test.labels.tolist() == LABELS[8:].tolist()
        assert dataset.name == "own"

    def test_a_single_part_is_split_by_the_seed(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "own.npz", x=IMAGES, y=LABELS)
        first, second = (load("own", data_dir=tmp_path, seed=1, test_share=0.25) for _ in range(2))
        assert len(first.test) == 3
        assert torch.equal(first.train.features, second.train.features)

    def test_the_data_folder_is_read_from_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        np.savez(tmp_path / "own.npz", x=IMAGES, y=LABELS)
        monkeypatch.setenv("FEDAUDIT_DATA", str(tmp_path))
        assert load("npz:own").classes == 3

    def test_arrays_of_objects_are_never_unpickled(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "own.npz", x=np.array([Trap(tmp_path / "ran")]), y=LABELS[:1])
        with pytest.raises(BadInput, match="other than plain arrays"):
            load("own", data_dir=tmp_path)
        assert not (tmp_path / "ran").exists()

    def test_invalid_and_duplicate_archive_entries_are_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "own.npz", x=IMAGES, y=LABELS)
        with zipfile.ZipFile(tmp_path / "own.npz", "a") as archive:
            archive.writestr("z.npy", b"no array")
        with pytest.raises(BadInput, match="contains 'z', which is not an array"):
            load("own", data_dir=tmp_path)
        with (
            zipfile.ZipFile(tmp_path / "own.npz", "a") as archive,
            pytest.warns(UserWarning, match="Duplicate"),
        ):
            archive.writestr("x.npy", b"another")
        with pytest.raises(BadInput, match=r"two arrays named 'x\.npy'"):
            load("own", data_dir=tmp_path)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [("(8, 100000000000000000000000)", "declares more values"), ("(((", "cannot be read")],
    )
    def test_an_invalid_array_header_is_refused(
        self, tmp_path: Path, shape: str, message: str
    ) -> None:
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text)
        with pytest.raises(FedauditError, match=rf"own\.npz {message}"):
            load("own", data_dir=tmp_path)

    @pytest.mark.parametrize(
        ("kind", "shape", "message"),
        [
            ("<f4", "(1000000000000, 0)", "no bytes; store arrays with values"),
            ("<U0", "(100000000000,)", "no bytes; store arrays with values"),
            ("<f4", "(1000000000000000,)", "declares more values than fit its .* bytes"),
        ],
    )
    @pytest.mark.parametrize("name", ["x", "y", "columns", "vocab_json"])
    def test_headers_that_announce_more_values_than_bytes_are_refused(
        self, tmp_path: Path, name: str, kind: str, shape: str, message: str
    ) -> None:
        text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        parts = {"x": IMAGES.reshape(12, -1), "y": LABELS, "columns": LABELS, "vocab_json": LABELS}
        del parts[name]
        np.savez(tmp_path / "own.npz", **parts)  # type: ignore[arg-type]
        with zipfile.ZipFile(tmp_path / "own.npz", "a") as archive:
            archive.writestr(f"{name}.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text)
        with pytest.raises(BadInput, match=message):
            load("own", data_dir=tmp_path)

    @pytest.mark.parametrize("position", [8, 10], ids=["encrypted", "unknown compression"])
    def test_an_archive_that_cannot_be_unpacked_is_refused(
        self, tmp_path: Path, position: int
    ) -> None:
        np.savez(tmp_path / "own.npz", x=IMAGES, y=LABELS)
        data = bytearray((tmp_path / "own.npz").read_bytes())
        data[data.find(b"PK\1\2") + position] |= 1 if position == 8 else 99
        (tmp_path / "own.npz").write_bytes(data)
        with pytest.raises(Damaged, match=r"own\.npz cannot be read"):
            load("own", data_dir=tmp_path)

    @pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_an_archive_packed_by_another_program_is_read(
        self, tmp_path: Path, packing: int
    ) -> None:
        _packed(tmp_path / "own.npz", packing)
        loaded = load("own", data_dir=tmp_path)
        assert len(loaded.train) + len(loaded.test) == len(IMAGES)

    def test_an_lzma_dictionary_of_gigabytes_is_refused(self, tmp_path: Path) -> None:
        _packed(tmp_path / "own.npz", zipfile.ZIP_LZMA)
        data = bytearray((tmp_path / "own.npz").read_bytes())
        with zipfile.ZipFile(tmp_path / "own.npz") as archive:
            entry = archive.infolist()[0]
        # Behind the name: LZMA's version, the size of its properties, the first of them.
        position = entry.header_offset + 30 + len(entry.filename) + 5
        data[position : position + 4] = struct.pack("<I", 2**32 - 1)
        (tmp_path / "own.npz").write_bytes(data)
        with pytest.raises(BadInput, match=r"would take 4\.00 GiB of memory"):
            load("own", data_dir=tmp_path)

    def test_a_file_that_is_cut_off_is_damaged(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "own.npz", x=IMAGES, y=LABELS)
        file_bytes = (tmp_path / "own.npz").read_bytes()
        (tmp_path / "own.npz").write_bytes(file_bytes[: len(file_bytes) // 2])
        with pytest.raises(Damaged, match=r"own\.npz cannot be read"):
            load("own", data_dir=tmp_path)


class TestTable:
    def store(self, folder: Path, codes: list[list[int]], vocabulary: str) -> None:
        np.savez(
            folder / "people.npz",
            x_train=np.array(codes, dtype=np.int32), y_train=np.array([0, 1, 1]),
            x_test=np.array(codes[:1], dtype=np.int32), y_test=np.array([0]),
            columns=np.array(["age", "sex"]),
            vocab_json=np.frombuffer(vocabulary.encode(), dtype=np.uint8),
        )  # fmt: skip

    def test_categories_are_one_hot_encoded_and_numbers_standardised(self, tmp_path: Path) -> None:
        self.store(tmp_path, [[20, 0], [30, 1], [40, 1]], '{"sex": ["f", "m"]}')
        dataset = load("people", data_dir=tmp_path, group="sex")
        spread = (200 / 3) ** 0.5
        expected = torch.tensor([[-10 / spread, 1, 0], [0, 0, 1], [10 / spread, 0, 1]])
        assert torch.allclose(dataset.train.features, expected)
        assert dataset.group is not None
        assert dataset.group.tolist() == [0, 1, 1, 0]
        assert dataset.group_names == ("f", "m")

    @pytest.mark.parametrize(
        ("sex", "vocabulary", "options", "message"),
        [
            (2, '{"sex": ["f", "m"]}', {}, "must be whole numbers from 0 to 1, got 0 to 2"),
            (1, '{"sex": ["f", "m"]}', {"group": "sexe"}, "did you mean 'sex'"),
            (1, "{sex", {}, "not JSON"),
        ],
    )
    def test_invalid_codes_groups_and_vocabularies_are_refused(
        self, tmp_path: Path, sex: int, vocabulary: str, options: dict[str, Any], message: str
    ) -> None:
        self.store(tmp_path, [[20, 0], [30, sex], [40, 1]], vocabulary)
        with pytest.raises(BadInput, match=message):
            load("people", data_dir=tmp_path, **options)

    @pytest.mark.parametrize(
        ("arrays", "options", "message"),
        [
            ({"images": IMAGES, "y": LABELS}, {}, "contains images, y; it must contain x_train"),
            (
                {"x": IMAGES, "y": LABELS, "columns": np.array("age"), "vocab_json": LABELS},
                {},
                "must be a list of names",
            ),
            (
                {"x": np.full((20, 2), 1e300), "y": np.arange(20) % 2},
                {},
                r"reach 1e\+300, and models compute in 32-bit",
            ),
            ({"x": IMAGES, "y": LABELS}, {"group": "sex"}, "no named columns"),
        ],
    )
    def test_arrays_of_wrong_shapes_are_refused(
        self, tmp_path: Path, arrays: dict[str, ndarray], options: dict[str, Any], message: str
    ) -> None:
        np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=message):
            load("own", data_dir=tmp_path, **options)


def idx(values: ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


def store_idx(folder: Path, *, prefix: str = "", tested: str = "t10k", first: int = 0) -> None:
    folder.mkdir()
    for part, rows in (("train", slice(0, 9)), (tested, slice(9, 12))):
        images = gzip.compress(idx(IMAGES[rows]))
        (folder / f"{prefix}{part}-images-idx3-ubyte.gz").write_bytes(images)
        labels = idx(LABELS[rows] + np.uint8(first))
        (folder / f"{prefix}{part}-labels-idx1-ubyte").write_bytes(labels)


class TestIdx:
    def test_plain_and_packed_files_are_read(self, tmp_path: Path) -> None:
        store_idx(tmp_path / "mnist")
        dataset = load("mnist", data_dir=tmp_path, standardise=False)
        assert torch.equal(dataset.train.features, plain(IMAGES[:9, None]))
        assert dataset.test.labels.tolist() == LABELS[9:].tolist()

    def test_emnist_letters_are_renumbered_and_transposed(self, tmp_path: Path) -> None:
        store_idx(tmp_path / "emnist", prefix="emnist-letters-", tested="test", first=1)
        dataset = load(
            "idx:emnist", data_dir=tmp_path, prefix="emnist-letters-", first_label=1,
            transposed=True, standardise=False,
        )  # fmt: skip
        assert torch.equal(dataset.test.features, plain(IMAGES[9:, None].swapaxes(2, 3).copy()))
        assert dataset.train.labels.tolist() == LABELS[:9].tolist()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (bytes([0, 0, 8, 3, 0, 0, 0, 0, *[255] * 8]), "declares 0 bytes"),
            (idx(LABELS[:9])[:-2], r"declares 9 bytes of shape \(9,\) and contains 7"),
            (b"", "not an IDX file of bytes"),
            (b"\0\0\x0d\x01", "not an IDX file of bytes"),
            (b"\0\0\x08\xff\0\0", "not an IDX file of bytes"),
            (b"<html>", "not an IDX file of bytes"),
        ],
    )
    def test_a_file_of_another_kind_or_length_is_damaged(
        self, tmp_path: Path, content: bytes, message: str
    ) -> None:
        store_idx(tmp_path / "mnist")
        (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(content)
        with pytest.raises(Damaged, match=message):
            load("mnist", data_dir=tmp_path)

    def test_a_packed_file_that_is_cut_off_is_damaged(self, tmp_path: Path) -> None:
        store_idx(tmp_path / "mnist")
        path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(Damaged, match="cannot be unpacked"):
            load("mnist", data_dir=tmp_path)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        store_idx(tmp_path / "mnist")
        (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
        with pytest.raises(BadInput, match="neither t10k-labels-idx1-ubyte nor"):
            load("mnist", data_dir=tmp_path)


class Trap:
    """Makes a file when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def cifar_batch(images: ndarray, labels: list[int], key: str, protocol: int = 2) -> bytes:
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    return pickle.dumps({b"data": rows, key.encode(): labels}, protocol=protocol)


COLOURED = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)


class TestCifar:
    def store(self, folder: Path, protocol: int = 2) -> None:
        folder.mkdir()
        for number in range(1, 6):
            part = slice(2 * number - 2, 2 * number)
            batch = cifar_batch(COLOURED[part], [0, 1], "labels", protocol)
            (folder / f"data_batch_{number}").write_bytes(batch)
        (folder / "test_batch").write_bytes(cifar_batch(COLOURED[10:], [1, 0], "labels"))

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_cifar10_is_read_from_five_batches(self, tmp_path: Path, protocol: int) -> None:
        self.store(tmp_path / "cifar-10-batches-py", protocol)
        dataset = load("cifar10", data_dir=tmp_path, standardise=False)
        assert torch.equal(dataset.train.features, plain(COLOURED[:10].transpose(0, 3, 1, 2)))
        assert dataset.train.labels.tolist() == [0, 1] * 5
        assert dataset.test.labels.tolist() == [1, 0]

    def test_cifar100_can_be_labelled_by_superclass(self, tmp_path: Path) -> None:
        folder = tmp_path / "cifar-100-python"
        folder.mkdir()
        (folder / "meta").write_bytes(b"")
        for part in ("train", "test"):
            (folder / part).write_bytes(cifar_batch(COLOURED[:2], [0, 1], "coarse_labels"))
        assert load("cifar100", data_dir=tmp_path, coarse=True).classes == 2
        with pytest.raises(Damaged, match="'fine_labels'"):
            load("cifar100", data_dir=tmp_path)

    def test_text_that_python_2_stored_as_bytes_is_read(self, tmp_path: Path) -> None:
        self.store(tmp_path / "c")
        # The original files: protocol 2 of Python 2, where texts and pixels are byte strings.
        row = COLOURED[:2].transpose(0, 3, 1, 2).tobytes()
        original = (
            b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
            b"K\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
            + struct.pack("<i", len(row)) + row + b"tbU\x06labels](K\x00K\x01eu."
        )  # fmt: skip
        (tmp_path / "c" / "data_batch_1").write_bytes(original)
        dataset = load("c", data_dir=tmp_path, standardise=False)
        assert torch.equal(dataset.train.features[:2], plain(COLOURED[:2].transpose(0, 3, 1, 2)))

    @pytest.mark.parametrize("protocol", range(6))
    def test_a_hostile_batch_is_refused_and_runs_nothing(
        self, tmp_path: Path, protocol: int
    ) -> None:
        self.store(tmp_path / "c")
        trap = pickle.dumps({"data": Trap(tmp_path / "ran")}, protocol=protocol)
        (tmp_path / "c" / "data_batch_3").write_bytes(trap)
        with pytest.raises(Damaged, match=r"requests .*mkdir.* nothing of it was executed"):
            load("c", data_dir=tmp_path)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("batch", "message"),
        [
            (b"", "fetch"),
            (b"not a pickle", "fetch"),
            (pickle.dumps([1]), "fetch"),
            (pickle.dumps({"data": b"", "labels": [0]}), "fetch"),
            (pickle.dumps({"data": np.zeros((1, 3072)), "labels": [0]}, protocol=2), "fetch"),
            (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": ["0"]}, 2), "fetch"),
            (cifar_batch(COLOURED[:2], [0, 1], "labels")[:-100], "fetch"),
            # Memory of its own making, and all memory.
            (pickle.dumps({"data": bytearray(3), "labels": [0]}, 5), r"a step \(BYTEARRAY8\)"),
            (b"I1\np999999999\n.", r"a step \(PUT\)"),
        ],
    )
    def test_a_batch_with_wrong_contents_is_damaged(
        self, tmp_path: Path, batch: bytes, message: str
    ) -> None:
        self.store(tmp_path / "c")
        (tmp_path / "c" / "data_batch_1").write_bytes(batch)
        with pytest.raises(Damaged, match=message):
            load("c", data_dir=tmp_path)

    def test_cifar10_has_no_superclasses(self, tmp_path: Path) -> None:
        self.store(tmp_path / "c")
        with pytest.raises(BadInput, match="no superclasses"):
            load("c", data_dir=tmp_path, coarse=True)


def store_pictures(folder: Path, names: dict[str, int], *, side: int = 4) -> None:
    """One picture of each brightness, in the folder of its class."""
    for name, level in names.items():
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), (level, 0, 0)).save(path)


def saved(folder: Path, pictures: list[Image.Image], suffix: str = ".png") -> Path:
    for i, picture in enumerate(pictures):
        (folder / "shades" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        picture.save(folder / "shades" / str(i % 2) / f"{i}{suffix}")
    return folder


def shades(kind: type, largest: int) -> list[Image.Image]:
    levels: ndarray = np.linspace(0, largest, 12).astype(kind)
    return [Image.fromarray(np.full((4, 4), level)) for level in levels]


def deep_png(colours: ndarray) -> bytes:
    """A PNG file of 16 bits per colour, which Pillow reads and does not write."""
    height, width, _ = colours.shape
    rows = b"".join(b"\0" + row.tobytes() for row in colours)

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class TestModesOfPictures:
    @pytest.mark.parametrize("grey", [True, False])
    @pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
    def test_pictures_of_sixteen_bits_are_scaled_by_their_range(
        self, suffix: str, grey: bool, tmp_path: Path
    ) -> None:
        fine_folder = saved(tmp_path / "16", shades(np.uint16, 65535), suffix)
        plain_folder = saved(tmp_path / "8", shades(np.uint8, 255))
        options = {"grey": grey, "standardise": False}
        fine = load("images:shades", seed=1, data_dir=fine_folder, **options)
        plain = load("images:shades", seed=1, data_dir=plain_folder, **options)
        levels = {len(set(picture.train.features.flatten().tolist())) for picture in (fine, plain)}
        assert levels == {10}
        assert torch.allclose(fine.train.features, plain.train.features, atol=1.01 / 255)

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
    def test_pictures_of_eight_bits_keep_their_range_in_every_mode(
        self, mode: str, tmp_path: Path
    ) -> None:
        pictures = [picture.convert(mode) for picture in shades(np.uint8, 255)]
        folder = saved(tmp_path, pictures, ".tif" if mode == "CMYK" else ".png")
        dataset = load("images:shades", seed=1, data_dir=folder, grey=True, standardise=False)
        values = torch.cat([dataset.train.features, dataset.test.features])
        assert [values.min().item(), values.max().item()] == [0, 1]

    @pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
    def test_pictures_of_sixteen_bits_keep_their_depth(self, suffix: str, tmp_path: Path) -> None:
        levels = np.arange(1200, dtype=np.uint16).reshape(12, 10, 10)
        folder = saved(tmp_path, [Image.fromarray(level) for level in levels], suffix)
        options: dict[str, Any] = {"grey": True, "data_dir": folder, "seed": 1}
        plain = load("images:shades", standardise=False, **options)
        values = torch.cat([plain.train.features, plain.test.features]).flatten()
        assert torch.equal(values.sort().values, torch.arange(1200).double().div(65535).float())
        assert plain.normalisation == "pixels / 65535"
        assert plain.statement == (
            "data shades: 12 pictures of 10 x 10 pixels, grey, 16 bits per value, values from 0 to "
            "1199",
        )
        scaled = load("images:shades", **options).train.features
        assert scaled.mean().item() == pytest.approx(0, abs=1e-5)
        assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-5)
        colour = load("images:shades", standardise=False, **{**options, "grey": False})
        assert torch.equal(colour.train.features, plain.train.features.expand(-1, 3, -1, -1))
        small = load("images:shades", size=5, standardise=False, **options)
        assert len(set(small.train.features.flatten().tolist())) > 100

    @pytest.mark.parametrize("kind", [np.float32, np.int32])
    def test_pictures_without_a_fixed_range_are_scaled_by_that_of_the_training_part(
        self, kind: type, tmp_path: Path
    ) -> None:
        levels: ndarray = np.arange(-100_000, 1_100_000, 1000).reshape(12, 10, 10).astype(kind)
        folder = saved(tmp_path, [Image.fromarray(level) for level in levels], ".tif")
        dataset = load("images:shades", seed=1, data_dir=folder, grey=True, standardise=False)
        train = dataset.train.features
        assert (train.min().item(), train.max().item()) == (0, 1)
        assert len(set(train.flatten().tolist())) == train.numel()
        assert "(training range) scaled to 0 to 1" in dataset.normalisation
        depth = "a floating-point number" if kind is np.float32 else "32 bits"
        message = f"grey, {depth} per value, values from -100000 to 1.099e+06"
        assert dataset.statement[0].endswith(message)

    def test_pictures_of_several_depths_or_without_numbers_are_refused(
        self, tmp_path: Path
    ) -> None:
        mixed = [*shades(np.uint16, 65535)[:6], *shades(np.uint8, 255)[:6]]
        folder = saved(tmp_path / "mixed", mixed)
        with pytest.raises(BadInput, match="16 bits per value and the first picture 8 bits"):
            load("images:shades", seed=1, data_dir=folder)
        for part, kind in (("train", np.uint8), ("val", np.uint16)):
            for level in range(2):
                path = tmp_path / "parts" / "shades" / part / str(level) / "a.png"
                path.parent.mkdir(parents=True)
                Image.fromarray(np.full((4, 4), level * 9, dtype=kind)).save(path)
        with pytest.raises(BadInput, match="values of type uint8, and test pictures uint16"):
            load("images:shades", seed=1, data_dir=tmp_path / "parts")
        broken = [Image.fromarray(np.full((4, 4), np.nan, dtype=np.float32))] * 12
        with pytest.raises(BadInput, match=r"0\.tif has values that are infinite or no numbers"):
            load("images:shades", seed=1, data_dir=saved(tmp_path / "nan", broken, ".tif"))

    def test_colours_of_sixteen_bits_are_counted_as_shortened(self, tmp_path: Path) -> None:
        for index in range(4):
            path = tmp_path / "deep" / str(index % 2) / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(deep_png(np.full((4, 4, 3), 300 * index, dtype=">u2")))
        dataset = load("images:deep", seed=1, data_dir=tmp_path, test_share=0.5)
        assert dataset.statement[0].endswith("; 4 have 16 bits per colour, of which 8 are read")

    def test_pictures_that_are_all_white_are_refused(self, tmp_path: Path) -> None:
        white = [Image.new("L", (4, 4), 255) for _ in range(12)]
        with pytest.raises(BadInput, match="training samples of 'shades' have the same features"):
            load("images:shades", seed=1, data_dir=saved(tmp_path, white))

    def test_constant_features_are_refused_by_every_source(self, tmp_path: Path) -> None:
        y = np.arange(12) % 3
        np.savez(tmp_path / "flat.npz", x=np.tile(np.arange(4.0), (12, 1)), y=y)
        with pytest.raises(BadInput, match="training samples of 'flat' have the same features"):
            load("npz:flat", seed=1, data_dir=tmp_path)
        with pytest.raises(BadInput, match="have the same features"):
            fedaudit.datasets.samples(np.ones((12, 4)), y)(seed=1)
        store_idx(tmp_path / "flat")
        flat = tmp_path / "flat" / "train-images-idx3-ubyte.gz"
        flat.write_bytes(gzip.compress(idx(np.zeros_like(IMAGES[:9]))))
        with pytest.raises(BadInput, match="have the same features"):
            load("idx:flat", seed=1, data_dir=tmp_path)


class TestImageFolder:
    def test_classes_and_files_are_taken_in_sorted_order(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "pets/train", {"dog/2": 20, "cat/b/1": 51, "cat/a": 0})
        store_pictures(tmp_path / "pets/val", {"dog/1": 255})
        dataset = load("pets", data_dir=tmp_path, standardise=False)
        assert dataset.train.labels.tolist() == [0, 0, 1]
        red = dataset.train.features[:, 0, 0, 0]
        assert torch.allclose(red, torch.tensor([0, 0.2, 20 / 255]))
        assert dataset.test.labels.tolist() == [1]

    def test_one_folder_is_split_by_the_seed_and_pictures_can_be_resized(
        self, tmp_path: Path
    ) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(4)})
        store_pictures(tmp_path / "pets", {"a/9": 9}, side=8)
        with pytest.raises(BadInput, match="set size to bring all to one"):
            load("pets", data_dir=tmp_path, test_share=0.25)
        dataset = load("pets", data_dir=tmp_path, size=2, grey=True, test_share=0.25)
        assert dataset.train.features.shape == (7, 1, 2, 2)
        assert dataset.normalisation.startswith("resized to 2 x 2, pixels / 255")

    def test_without_a_test_folder_a_share_is_held_out_and_reported(self, tmp_path: Path) -> None:
        names = {f"{c}/{i}": i for c in ("cat", "dog") for i in range(4)}
        store_pictures(tmp_path / "pets/train", names)
        dataset = load("pets", data_dir=tmp_path, seed=1, test_share=0.25)
        assert dataset.classes == 2
        assert (len(dataset.train), len(dataset.test)) == (6, 2)
        assert "a share of 0.25 of each class in train held out" in dataset.normalisation
        (tmp_path / "bare" / "train").mkdir(parents=True)
        with pytest.raises(BadInput, match="train has no folder of a class"):
            load("images:bare", data_dir=tmp_path)

    @pytest.mark.parametrize(
        "parts",
        [("training", "testing"), ("train", "valid"), ("test",), ("Train", "Test"), ("val",)],
    )
    def test_folders_named_like_parts_are_not_taken_for_classes(
        self, parts: tuple[str, ...], tmp_path: Path
    ) -> None:
        for part in parts:
            store_pictures(
                tmp_path / "pets" / part, {f"{c}/{i}": i for c in "ab" for i in range(4)}
            )
        with pytest.raises(BadInput, match="are parts and no classes; name them train and test"):
            load("pets", data_dir=tmp_path)

    def test_a_class_may_be_called_train(self, tmp_path: Path) -> None:
        names = {f"{c}/{i}": i for c in ("train", "plane") for i in range(4)}
        store_pictures(tmp_path / "travel", names)
        assert load("travel", data_dir=tmp_path, seed=1, test_share=0.25).classes == 2

    def test_a_class_without_training_samples_is_refused(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "pets/train", {"cat/1": 1, "dog/1": 1})
        store_pictures(tmp_path / "pets/test", {"cow/1": 1})
        with pytest.raises(BadInput, match=r"class 'cow', which .* lacks"):
            load("pets", data_dir=tmp_path)

    def test_an_empty_class_is_refused(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "pets", {"cat/1": 1})
        (tmp_path / "pets" / "dog").mkdir()
        with pytest.raises(BadInput, match="dog has no pictures"):
            load("pets", data_dir=tmp_path)

    def test_a_file_that_is_no_picture_is_damaged(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        path = tmp_path / "pets" / "a" / "1.png"
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(Damaged, match=r"1\.png cannot be read as a picture"):
            load("pets", data_dir=tmp_path)

    def test_a_pipe_among_pictures_is_refused_at_once(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        os.mkfifo(tmp_path / "pets" / "b" / "9.png")
        with pytest.raises(
            BadInput, match=r"9\.png cannot be read as a picture \(not a regular file"
        ):
            load("pets", data_dir=tmp_path)

    @pytest.mark.parametrize("place", ["c", "b/more"])
    def test_a_folder_of_pictures_that_is_a_link_is_refused(
        self, place: str, tmp_path: Path
    ) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        store_pictures(tmp_path / "elsewhere", {str(i): i for i in range(5)})
        (tmp_path / "pets" / place).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BadInput, match=f"{place} is a link to a folder"):
            load("pets", data_dir=tmp_path)

    def test_folders_that_nest_deep_are_refused(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        deep = tmp_path / "pets" / "a"
        place = deep
        for _ in range(300):
            place /= "x"
            place.mkdir()
        with pytest.raises(BadInput, match="a has folders nested over 32 levels deep"):
            load("pets", data_dir=tmp_path)
        shutil.rmtree(deep / "x" / "x")
        assert len(load("pets", data_dir=tmp_path).train) == 8

    def test_folders_with_too_many_entries_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        monkeypatch.setattr("fedaudit.datasets.formats.images._MAX_ENTRIES", 4)
        with pytest.raises(BadInput, match="a contains over 4 files and folders"):
            load("pets", data_dir=tmp_path)

    @pytest.mark.parametrize("place", ["a", "b/more", "train", ""])
    def test_a_folder_that_cannot_be_read_is_refused(
        self, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part = "pets/train" if place == "train" else "pets"
        store_pictures(tmp_path / part, {f"{c}/{i}": i for c in "ab" for i in range(5)})
        store_pictures(tmp_path / part, {f"b/more/{i}": i for i in range(5)})
        scanned, locked = os.scandir, tmp_path / "pets" / place

        def scandir(folder: Path) -> object:
            if Path(folder) == locked:
                raise PermissionError(13, "Permission denied", str(folder))
            return scanned(folder)

        monkeypatch.setattr("fedaudit.datasets.formats.images.os.scandir", scandir)
        with pytest.raises(BadInput, match=rf"{locked} cannot be read \(Permission denied\)"):
            load("images:pets", data_dir=tmp_path)

    def test_the_training_part_is_no_link_to_a_folder(self, tmp_path: Path) -> None:
        for part in ("real", "pets/test"):
            store_pictures(tmp_path / part, {f"{c}/{i}": i for c in "ab" for i in range(5)})
        (tmp_path / "pets" / "train").symlink_to(tmp_path / "real")
        with pytest.raises(BadInput, match="train is a link to a folder"):
            load("pets", data_dir=tmp_path)

    @pytest.mark.parametrize(
        ("target", "message"),
        [("../../x.png", "a link that points outside"), ("gone.png", "No such")],
    )
    def test_a_picture_that_links_out_of_the_folder_or_nowhere_is_refused(
        self, target: str, message: str, tmp_path: Path
    ) -> None:
        store_pictures(tmp_path / "pets", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        Image.fromarray(IMAGES[0]).save(tmp_path / "x.png")
        (tmp_path / "pets" / "a" / "9.png").symlink_to(target)
        with pytest.raises(BadInput, match=f"9.png cannot be read as a picture .{message}"):
            load("pets", data_dir=tmp_path)

    def test_the_folder_itself_and_pictures_within_it_may_be_links(self, tmp_path: Path) -> None:
        store_pictures(tmp_path / "real", {f"{c}/{i}": i for c in "ab" for i in range(5)})
        (tmp_path / "real" / "a" / "9.png").symlink_to("1.png")
        (tmp_path / "pets").symlink_to(tmp_path / "real")
        assert len(load("pets", data_dir=tmp_path)) == 11


class Rows(list[object]):
    """Imitates a stored column of the datasets package."""

    def array(self) -> ndarray:
        return np.asarray(list(self))

    def column(self) -> Column:
        if any(isinstance(value, str) for value in self):
            texts = sorted({value for value in self if isinstance(value, str)})
            codes = [texts.index(value) if isinstance(value, str) else -1 for value in self]
            return text_column(np.array(codes), texts)
        return NumberColumn(np.array(self, dtype=np.float64))


def columns(**lists: list[object]) -> dict[str, Rows]:
    return {name: Rows(values) for name, values in lists.items()}


def as_stored(picture: Image.Image, kind: str = "PNG") -> dict[str, object]:
    """A picture as a column of pictures holds it, whose name need not be that of its format."""
    file = io.BytesIO()
    picture.save(file, kind)
    return {"bytes": file.getvalue(), "path": "a.jpg"}


class TestHuggingFace:
    @pytest.fixture
    def from_tables(self, monkeypatch: pytest.MonkeyPatch) -> Reads:
        """Reads a data set of these tables, as the package would have loaded them."""

        def read(
            name: str,
            parts: object,
            folders: tuple[Path, ...] = (),
            *,
            seed: int,
            **options: object,
        ) -> Dataset:
            source = hf.UndecodedDataset(parts, 10_000, folders)  # type: ignore[arg-type]
            monkeypatch.setattr(hf, "_load", lambda name, config: source)
            return hf.hf(name, **options).read(seed)  # type: ignore[arg-type]

        return read

    def test_pictures_in_a_table_are_read(self, from_tables: Reads) -> None:
        pictures: list[object] = [as_stored(Image.fromarray(image)) for image in IMAGES]
        table = columns(image=pictures, label=list(LABELS))
        parts = {"train": table, "test": table}
        dataset = from_tables("t", parts, seed=0, grey=True, standardise=False)
        assert torch.equal(dataset.train.features, plain(IMAGES[:, None]))

    def test_rows_of_numbers_are_read_and_split(self, from_tables: Reads) -> None:
        rows: list[object] = [[0.5, float(i)] for i in range(12)]
        table = columns(row=rows, label=list(LABELS))
        dataset = from_tables("t", {"train": table}, seed=0, features="row", test_share=0.25)
        assert (len(dataset.train), len(dataset.test)) == (9, 3)

    def test_a_missing_column_gets_the_nearest_name(
        self, from_tables: Callable[..., Dataset]
    ) -> None:
        table = columns(image=[], labels=[])
        with pytest.raises(BadInput, match="did you mean 'labels'"):
            from_tables("t", {"train": columns(image=[1], labels=[0])}, seed=0)
        with pytest.raises(BadInput, match="one must be 'train'"):
            from_tables("t", {"validation": table}, seed=0)

    def test_a_picture_whose_header_announces_gigabytes_is_not_decoded(
        self, from_tables: Reads
    ) -> None:
        large: list[object] = [as_stored(Image.new("1", (7000, 7000)))] * 6
        with pytest.raises(BadInput, match=r"picture 0 of the split 'train' would take 0\.18"):
            from_tables("t", {"train": columns(image=large, label=[0, 1] * 3)}, seed=0)

    def test_pictures_that_exceed_memory_together_are_refused(self, from_tables: Reads) -> None:
        many: list[object] = [as_stored(Image.new("1", (1500, 1500)))] * 40
        with pytest.raises(BadInput, match="40 pictures of 1500 x 1500 pixels would take"):
            from_tables("t", {"train": columns(image=many, label=[0, 1] * 20)}, seed=0)

    def test_postscript_named_as_a_picture_is_not_executed(self, from_tables: Reads) -> None:
        drawn: list[object] = [as_stored(Image.new("RGB", (4, 4)), "EPS")] * 6
        with pytest.raises(Damaged, match=r"picture 0 of the split 'train' .* none of PNG"):
            from_tables("t", {"train": columns(image=drawn, label=[0, 1] * 3)}, seed=0)

    def test_a_truncated_picture_is_refused_with_its_position(self, from_tables: Reads) -> None:
        pictures: list[object] = [as_stored(Image.fromarray(image)) for image in IMAGES]
        picture_bytes = pictures[7]
        assert isinstance(picture_bytes, dict)
        pictures[7] = {"bytes": picture_bytes["bytes"][:50], "path": None}
        with pytest.raises(Damaged, match="picture 7 of the split 'train' cannot be read"):
            from_tables("t", {"train": columns(image=pictures, label=list(LABELS))}, seed=0)

    def test_table_paths_outside_the_data_set_are_refused(
        self, from_tables: Reads, tmp_path: Path
    ) -> None:
        (tmp_path / "own").mkdir()
        for name in ("own/a.png", "b.png"):
            Image.fromarray(IMAGES[0]).save(tmp_path / name)
        (tmp_path / "own" / "link.png").symlink_to(tmp_path / "b.png")
        Image.fromarray(IMAGES[1]).save(tmp_path / "own" / "c.png")

        def read(*names: str) -> Dataset:
            rows: list[object] = [
                {"bytes": None, "path": str(tmp_path / "own" / name)} for name in names
            ]
            table = columns(image=rows * 2, label=[0, 1] * 2)
            return from_tables("t", {"train": table}, (tmp_path / "own",), seed=0, test_share=0.5)

        (tmp_path / "own" / "loop.png").symlink_to("loop.png")
        assert read("a.png", "c.png").classes == 2
        for name in ("../b.png", "link.png", "loop.png", "../../../etc/passwd", "a\0.png"):
            with pytest.raises(Damaged, match="no path within the data set"):
                read("a.png", name)

    def test_a_path_in_a_table_that_is_a_pipe_is_refused(
        self, from_tables: Reads, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "a.png")
        rows: list[object] = [{"bytes": None, "path": str(tmp_path / "a.png")}] * 4
        with pytest.raises(Damaged, match="not a regular file"):
            from_tables("t", {"train": columns(image=rows, label=[0, 1] * 2)}, (tmp_path,), seed=0)

    @pytest.mark.parametrize("error", [RuntimeError("cut off"), KeyError("x"), OSError("gone")])
    def test_errors_of_the_datasets_package_become_one_sentence(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise error

        package = types.SimpleNamespace(load_dataset_builder=fail)
        monkeypatch.setitem(sys.modules, "datasets", package)
        with pytest.raises(BadInput, match="data set 'x' cannot be loaded"):
            load("hf:x")

    def test_the_missing_datasets_package_raises_with_install_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(BadInput, match=r"pip install 'fedaudit\[data\]'"):
            load("hf:mnist")

    def test_arrow_columns_are_read_with_their_stored_types(self, from_tables: Reads) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        stored = pyarrow.table(
            {
                "row": [[[0.0, 1.0]], [[1.0, 2.0]], [[2.0, 4.0]], [[3.0, 5.0]]],
                "label": [0, 1] * 2,
                "ragged": [[1], [1, 2], [], [1]],
            }
        )
        table = {
            name: ArrowColumn("t", name, stored.column(name), 0) for name in stored.column_names
        }
        dataset = from_tables("t", {"train": table}, seed=0, features="row", test_share=0.5)
        assert (dataset.classes, dataset.train.features.shape[1:]) == (2, (1, 2))
        with pytest.raises(BadInput, match="rows of column 'ragged' of 't' differ in length"):
            from_tables("t", {"train": table}, seed=0, features="ragged", test_share=0.5)

    @pytest.mark.slow
    def test_compressed_parquet_bombs_are_refused_before_loading(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        pytest.importorskip("datasets")
        picture = as_stored(Image.new("L", (300, 300)))["bytes"]
        places = pyarrow.array(np.zeros(1_000_000, np.int32))
        table = pyarrow.table(
            {
                "image": pyarrow.DictionaryArray.from_arrays(places, pyarrow.array([picture])),
                "label": np.arange(1_000_000) % 2,
            }
        )
        path = tmp_path / "train.parquet"
        parquet.write_table(table, path, row_group_size=1_000_000, compression="zstd")
        assert path.stat().st_size < 50_000
        with pytest.raises(BadInput, match=r"train\.parquet\) would take 0\.13 GiB"):
            load(f"hf:{tmp_path}")
        path.write_bytes(path.read_bytes()[:9000])
        with pytest.raises(Damaged, match=r"train\.parquet of .* cannot be read as Parquet"):
            load(f"hf:{tmp_path}")


class TestNames:
    def test_a_misspelt_name_raises_with_suggestion_and_searched_places(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "mnist.npz").write_bytes(b"")
        with pytest.raises(BadInput, match=r"did you mean 'mnist'.*looked for minst\.npz"):
            load("minst", data_dir=tmp_path)

    def test_a_data_directory_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="is not a folder"):
            load("mnist", data_dir=tmp_path / "nowhere")

    @pytest.mark.parametrize("name", ["../mnist", "", ".", "a/b", "npz:../x"])
    def test_names_outside_the_data_directory_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(BadInput, match="not a name of a data set"):
            load(name, data_dir=tmp_path)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("mnist", {}, "set FEDAUDIT_DATA or give data_dir"),
            ("npy:mnist", {"data_dir": Path()}, "did you mean 'npz'"),
            ("digits", {"testshare": 0.3}, "did you mean 'test_share'"),
            ("synthetic", {"samples": "many"}, "samples of synthetic takes a whole number from 2"),
            ("synthetic", {"samples": True}, "samples of synthetic takes a whole number from 2"),
            ("synthetic", {"samples": 2.5}, "samples of synthetic takes a whole number from 2"),
            ("synthetic", {"samples": 10, "classes": 1}, "classes of synthetic takes a whole"),
        ],
    )
    def test_unsupported_options_raise_with_the_supported_ones(
        self, name: str, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(BadInput, match=message):
            load(name, **options)

    def test_every_format_is_a_source(self) -> None:
        assert FORMATS.keys() < SOURCES.keys()


def test_samples_may_require_gradients() -> None:
    x, y = torch.arange(40.0).reshape(20, 2).requires_grad_(), torch.arange(20) % 2
    people = torch.arange(20)
    dataset = fedaudit.datasets.samples(x, y, subject=people)(seed=1)
    plain = fedaudit.datasets.samples(x.detach(), y, subject=people)(seed=1)
    assert torch.equal(dataset.train.features, plain.train.features)
    assert not dataset.train.features.requires_grad
    tested = fedaudit.datasets.samples(x, y, x + 1, y)(seed=1)
    assert not tested.test.features.requires_grad
    plain_dataset = from_samples(fedaudit.Samples(x, y))(seed=1)
    assert torch.equal(plain_dataset.train.features, plain.train.features)
