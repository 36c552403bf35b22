"""Records of studies, kept as one compressed archive for each study.

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

HERE = Path(__file__).parent
BUILT = HERE.parent / "build" / "records"
SUFFIX = ".tar.xz"


@cache
def unpacked() -> Path:
    """Return a folder with the records of all studies, unpacked once for each state of archives.

    It lies below ``build`` and is named by a hash of the archives. Folders of earlier states are
    removed.
    """
    archives = sorted(HERE.glob(f"*{SUFFIX}"))
    hashed = hashlib.sha256()
    for path in archives:
        hashed.update(hashlib.sha256(path.name.encode() + path.read_bytes()).digest())
    place = BUILT / hashed.hexdigest()[:16]
    if place.is_dir():
        return place
    BUILT.mkdir(parents=True, exist_ok=True)
    earlier = list(BUILT.glob("[!.]*"))
    fresh = Path(mkdtemp(prefix=".", dir=BUILT))
    unpack(fresh)
    try:
        fresh.rename(place)
    except OSError:
        # Another process was faster.
        rmtree(fresh)
    for left in earlier:
        if left != place:
            rmtree(left, ignore_errors=True)
    return place


def unpack(folder: Path) -> None:
    """Unpack all archives.

    Args:
        folder: Where the studies' folders are made.
    """
    for path in sorted(HERE.glob(f"*{SUFFIX}")):
        with tarfile.open(path) as tar:
            tar.extractall(folder, filter="data")


def archive(records: Mapping[str, bytes], name: str) -> Path:
    """Write the archive of a study.

    The same records give the same bytes, whoever writes them and when.

    Args:
        records: Content of each JSON file by its name.
        name: Of the study.

    Returns:
        Where the archive was written.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file, content in sorted(records.items()):
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    made = HERE / f"{name}{SUFFIX}"
    made.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    return made


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
