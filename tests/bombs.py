"""Small files that unpack to gigabytes, and a program that reads them.

``python -m tests.bombs FOLDER LIMIT`` reads them one by one, limits the memory to LIMIT bytes above
the initial use of the program, and prints a line of JSON for each file.
"""

import gzip
import json
import pickle
import resource
import struct
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import numpy as np
from PIL import Image

from fedaudit.core.errors import FedauditError
from fedaudit.datasets.arrays import AnyArray
from fedaudit.datasets.catalog import load
from fedaudit.live.recording import LOG_FILE, read_round_log
from fedaudit.observe.tensors import read_tensors
from fedaudit.results.read import read_comparison, read_record


def packed(path: Path, **arrays: AnyArray) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)


def images(folder: Path) -> Callable[[], object]:
    """256 MiB of bytes, which take a GiB as 32-bit numbers and more during scaling."""
    labels = np.arange(2**18) % 2
    packed(folder / "images.npz", x=np.zeros((2**18, 32, 32), np.uint8), y=labels)
    return lambda: load("images", data_dir=folder)


def nearly_blank(shape: tuple[int, ...], kind: type) -> np.ndarray:
    """Return zeros with ones in every thousandth sample, which compress well, too."""
    values: np.ndarray = np.zeros(shape, kind)
    values[::1000] = 1
    return values


def almost(folder: Path) -> Callable[[], object]:
    """Pictures, numbers and codes just below the limits of readers."""
    labels = np.arange(30_000) % 2
    packed(folder / "a.npz", x=nearly_blank((30_000, 32, 32), np.uint8), y=labels)
    packed(folder / "b.npz", x=nearly_blank((30_000, 500), np.float64), y=labels)
    words = json.dumps({"a": [str(number) for number in range(1000)]}).encode()
    packed(
        folder / "c.npz",
        x=nearly_blank((30_000, 1), np.int16),
        y=labels,
        columns=np.array(["a"]),
        vocab_json=np.frombuffer(words, np.uint8),
    )
    return lambda: [load(name, data_dir=folder) for name in "abc"]


def announced(folder: Path) -> Callable[[], object]:
    """An array whose header announces 7 GB, without any data."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1800000000,), }\n"
    with zipfile.ZipFile(folder / "announced.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head)
    return lambda: load("announced", data_dir=folder)


def blanks(folder: Path) -> Callable[[], object]:
    """An array whose header is 300 MB of blanks, in 1.3 MB."""
    path = folder / "blanks.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x_train.npy", "w") as file,
    ):
        file.write(b"\x93NUMPY\2\0" + struct.pack("<I", 300_000_000))
        for _ in range(300):
            file.write(b" " * 1_000_000)
    return lambda: load("blanks", data_dir=folder)


def entries(folder: Path) -> Callable[[], object]:
    """An archive of 100,000 empty arrays."""
    with zipfile.ZipFile(folder / "entries.npz", "w") as archive:
        archive.writestr("x.npy", b"")
        listed = 46 + len("x.npy")
    data = (folder / "entries.npz").read_bytes()
    start = data.find(b"PK\1\2")
    many = data[start : start + listed] * 100_000
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, len(many), start, 0)
    (folder / "entries.npz").write_bytes(data[:start] + many + end)
    return lambda: load("entries", data_dir=folder)


def codes(folder: Path) -> Callable[[], object]:
    """A table of codes: 100,000 rows of one column that may have 10,000 values."""
    vocabulary = json.dumps({"a": [str(number) for number in range(10_000)]}).encode()
    packed(
        folder / "codes.npz",
        x=np.zeros((100_000, 1), np.int16),
        y=np.arange(100_000, dtype=np.uint8) % 2,
        columns=np.array(["a"]),
        vocab_json=np.frombuffer(vocabulary, np.uint8),
    )
    return lambda: load("codes", data_dir=folder)


def vocabulary(folder: Path) -> Callable[[], object]:
    """A vocabulary of five million empty lists."""
    packed(
        folder / "words.npz",
        x=np.zeros((10, 1), np.int16),
        y=np.arange(10) % 2,
        columns=np.array(["a"]),
        vocab_json=np.frombuffer(b'{"a":[' + b"[]," * 5_000_000 + b"0]}", np.uint8),
    )
    return lambda: load("words", data_dir=folder)


def pictures(folder: Path) -> Callable[[], object]:
    """Pictures of 67 million pixels of one bit, in 8 kB each."""
    for name in ("a", "b"):
        (folder / "pictures" / name).mkdir(parents=True)
        Image.new("1", (8192, 8192)).save(folder / "pictures" / name / "0.png")
        for number in (1, 2):
            copyfile(
                folder / "pictures" / name / "0.png", folder / "pictures" / name / f"{number}.png"
            )
    return lambda: load("images:pictures", data_dir=folder)


def medium_pictures(folder: Path) -> Callable[[], object]:
    """Pictures that exceed the limit only in total."""
    for name in ("a", "b"):
        (folder / "medium" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("1", (2048, 2048)).save(folder / "medium" / name / f"{number}.png")
    return lambda: load("images:medium", data_dir=folder)


def text_in_a_picture(folder: Path) -> Callable[[], object]:
    """A PNG with a compressed comment of 100 MB."""
    (folder / "text" / "a").mkdir(parents=True)
    (folder / "text" / "b").mkdir(parents=True)
    for place in ("a/1", "a/2", "b/0", "b/1", "b/2"):
        Image.new("1", (8, 8)).save(folder / "text" / f"{place}.png")
    path = folder / "text" / "a" / "0.png"
    Image.new("1", (8, 8)).save(path)
    data, body = path.read_bytes(), b"zTXtk\0\0" + zlib.compress(b"a" * 100_000_000, 1)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(data[:33] + chunk + data[33:])
    return lambda: load("images:text", data_dir=folder)


def idx(folder: Path) -> Callable[[], object]:
    """300 MB of pixels in a packed file of 1.3 MB."""
    (folder / "idx").mkdir()
    for part, count in (("train", 400_000), ("t10k", 10)):
        head = bytes([0, 0, 8, 3]) + struct.pack(">III", count, 28, 28)
        with gzip.open(folder / "idx" / f"{part}-images-idx3-ubyte.gz", "wb", 1) as file:
            file.write(head + bytes(784 * count))
        head = bytes([0, 0, 8, 1]) + struct.pack(">I", count)
        with gzip.open(folder / "idx" / f"{part}-labels-idx1-ubyte.gz", "wb", 1) as file:
            file.write(head + bytes([0, 1] * (count // 2)))
    return lambda: load("idx:idx", data_dir=folder)


def cifar(folder: Path, name: str, content: bytes) -> Callable[[], object]:
    (folder / name).mkdir()
    (folder / name / "data_batch_1").write_bytes(content)
    return lambda: load(f"cifar:{name}", data_dir=folder)


def lists_in_a_pickle(folder: Path) -> Callable[[], object]:
    return cifar(folder, "lists", b"\x80\x02" + b"]" * 20_000_000 + b".")


def texts_in_a_pickle(folder: Path) -> Callable[[], object]:
    """A text of 4 MB that is packed once and encoded a thousand times."""
    text = b"X" + struct.pack("<I", 2**22) + b"a" * 2**22 + b"q\1"
    call = b"c_codecs\nencode\nh\1X\6\0\0\0latin1\x86R"
    return cifar(folder, "texts", b"\x80\x02" + text + call * 1000 + b".")


def shape_in_a_pickle(folder: Path) -> Callable[[], object]:
    """An array that is described only by its shape: a million pictures without pixels."""
    shape = pickle.dumps(((10**6, 3072), "u1"), 2)[2:-1]
    return cifar(folder, "shape", b"\x80\x02}X\4\0\0\0datacnumpy\nndarray\n" + shape + b"Rs.")


def empty_objects(folder: Path) -> Callable[[], object]:
    """45 MB of JSON."""
    many = "{}," * 15_000_000
    (folder / "a.json").write_text(f'{{"format": "fedaudit-record", "estimates": [{many}{{}}]}}')
    return lambda: read_record(folder / "a.json")


def faults(folder: Path) -> Callable[[], object]:
    """A record with a million errors."""
    document = {"format": "fedaudit-record", "version": 3, "estimates": [{}] * 1_000_000}
    (folder / "b.json").write_text(json.dumps(document))
    return lambda: read_record(folder / "b.json")


def unknown_keys(folder: Path) -> Callable[[], object]:
    document = {
        "format": "fedaudit-record",
        "version": 2,
        **{str(number): 0 for number in range(600_000)},
    }
    (folder / "c.json").write_text(json.dumps(document))
    return lambda: read_record(folder / "c.json")


def compared(folder: Path) -> Callable[[], object]:
    document = {"format": "fedaudit-comparison", "version": 1, "rows": [[]] * 3_000_000}
    (folder / "d.json").write_text(json.dumps(document))
    return lambda: read_comparison(folder / "d.json")


def names(folder: Path) -> Callable[[], object]:
    """A header of safetensors with a million names."""
    every = (
        f'"{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        for number in range(1_000_000)
    )
    head = f"{{{','.join(every)}}}".encode()
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    return lambda: read_tensors(folder / "a.safetensors")


def notes(folder: Path) -> Callable[[], object]:
    every = ",".join(f'"{number}":""' for number in range(1_500_000))
    head = f'{{"__metadata__":{{{every}}}}}'.encode()
    (folder / "b.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    return lambda: read_tensors(folder / "b.safetensors")


def axes(folder: Path) -> Callable[[], object]:
    """A header of safetensors with one tensor of twelve million axes."""
    shape = b"1," * 12_000_000 + b"1"
    head = b'{"a":{"dtype":"U8","shape":[' + shape + b'],"data_offsets":[0,1]}}'
    (folder / "c.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"a")
    return lambda: read_tensors(folder / "c.safetensors")


def rounds(folder: Path) -> Callable[[], object]:
    line = '{"round":1,"asked":[],"answered":[],"measured":false}\n'
    (folder / LOG_FILE).write_text(line * 400_000)
    return lambda: read_round_log(folder)


BOMBS: tuple[Callable[[Path], Callable[[], object]], ...] = (
    images,
    almost,
    announced,
    blanks,
    entries,
    codes,
    vocabulary,
    pictures,
    medium_pictures,
    text_in_a_picture,
    idx,
    lists_in_a_pickle,
    texts_in_a_pickle,
    shape_in_a_pickle,
    empty_objects,
    faults,
    unknown_keys,
    compared,
    names,
    notes,
    axes,
    rounds,
)


def high_water() -> int:
    """Return the peak memory of this program; getrusage would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    folder, limit = Path(sys.argv[1]), int(sys.argv[2])
    readers = {make.__name__: make(folder) for make in BOMBS}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
    for name, read in readers.items():
        start, message = time.process_time(), ""
        try:
            read()
        except FedauditError as refusal:
            message = str(refusal)[:300]
        seconds = time.process_time() - start
        peak = high_water()
        print(json.dumps({"bomb": name, "message": message, "seconds": seconds, "peak": peak}))


if __name__ == "__main__":
    main()
