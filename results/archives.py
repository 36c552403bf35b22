"""Compressed archives with the records of studies, one for each study.

python results/archives.py FOLDER

Unpacks all archives into FOLDER: a folder for each study, in which each variant's record is a JSON
file.
"""

import hashlib
import io
import lzma
import sys
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from fedaudit.results.read import read_record
from fedaudit.results.record import Record

HERE = Path(__file__).parent
BUILT = HERE.parent / "build" / "records"
SUFFIX = ".tar.xz"


@cache
def unpacked() -> Path:
    """Return a folder with the records of all studies, which are unpacked if they have changed.

    The folder is below ``build`` and is named by a hash of the archives. Folders of earlier
    archives are removed.
    """
    archives = sorted(HERE.glob(f"*{SUFFIX}"))
    digest = hashlib.sha256()
    for path in archives:
        digest.update(hashlib.sha256(path.name.encode() + path.read_bytes()).digest())
    target = BUILT / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    BUILT.mkdir(parents=True, exist_ok=True)
    earlier = list(BUILT.glob("[!.]*"))
    temporary = Path(mkdtemp(prefix=".", dir=BUILT))
    unpack(temporary)
    try:
        temporary.rename(target)
    except OSError:
        # Another process has unpacked the same archives.
        rmtree(temporary)
    for folder in earlier:
        if folder != target:
            rmtree(folder, ignore_errors=True)
    return target


@cache
def committed_record(path: Path) -> Record:
    """Read a record below :func:`unpacked`, and keep it for later calls."""
    return read_record(path)


def unpack(folder: Path) -> None:
    """Unpack all archives.

    Args:
        folder: Folder in which a folder is created for each study.
    """
    for path in sorted(HERE.glob(f"*{SUFFIX}")):
        with tarfile.open(path) as tar:
            tar.extractall(folder, filter="data")


def archive(records: Mapping[str, bytes], name: str) -> Path:
    """Write the archive of a study.

    The bytes of the archive depend only on the records.

    Args:
        records: Content of each JSON file by its name.
        name: Name of the study.

    Returns:
        Path of the archive.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file, content in sorted(records.items()):
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    path = HERE / f"{name}{SUFFIX}"
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    return path


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
