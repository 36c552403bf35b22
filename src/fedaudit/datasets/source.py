"""Bases of the catalogue's data sets, which hold a name and settings."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedaudit.core.arguments import dataclass
from fedaudit.core.lazy import entry_name
from fedaudit.core.naming import DataPart, changed_fields

if TYPE_CHECKING:
    from fedaudit.datasets.dataset import Dataset


@dataclass(frozen=True)
class DataSource:
    """Data set with settings. Its file has the catalogue name."""

    catalogue_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.catalogue_name = entry_name(cls.__module__)

    def part(self) -> DataPart:
        """Return name and settings as in a study file, without settings at their defaults."""
        return DataPart(self.catalogue_name, changed_fields(self))

    def read(self, seed: int) -> "Dataset":
        """Return the data set.

        Args:
            seed: Seed of all random choices: generated data, and the test samples if no file
                defines them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DataFile(DataSource):
    """File or folder with a data set.

    Attributes:
        path: Path, or name in the data directory.
    """

    looks_for: ClassVar[str]
    """Path that :meth:`find` searches for, in words."""
    suffix: ClassVar[str] = ""
    """Suffix of the file, which users may omit."""

    path: Path | str

    @property
    def file(self) -> Path:
        """The path with its suffix."""
        path = Path(self.path)
        return path if path.suffix == self.suffix else Path(f"{path}{self.suffix}")

    def part(self) -> DataPart:
        """Return name, settings and folder as a study has them."""
        settings = changed_fields(self)
        settings.pop("path")
        path = Path(self.path)
        name = path.name.removesuffix(self.suffix)
        # A plain name without such a file is a name in the data directory.
        is_path = path.exists() or self.file.exists() or name != str(self.path)
        folder = path.absolute().parent if is_path else None
        return DataPart(f"{self.catalogue_name}:{name}", settings, folder)

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return the file or folder of a data set in the data directory, or None."""
        raise NotImplementedError
