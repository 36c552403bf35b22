"""Study files, in which names of audited clients are resolved to the numbers of clients."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.naming import number_of_client
from fedaudit.core.objects import PartReference
from fedaudit.datasets.catalog import client_names_of
from fedaudit.plan.file import read_studies
from fedaudit.plan.sections import Study


def read_study(
    path: Path | str,
    overrides: dict[str, object] | None = None,
    *,
    data_dir: Path | str | None = None,
) -> Study:
    """Read a study from a TOML file, without its variants.

    If ``audit.targets`` names clients as the data do, the data are read, and the names are replaced
    by numbers.

    Args:
        path: The file.
        overrides: Values by dotted name that replace the file's, such as
            ``{"training.rounds": 10}``.
        data_dir: Folder of data sets, for names of clients; by default, the folder in the
            environment variable ``FEDAUDIT_DATA``.

    Returns:
        The settings, which :func:`fedaudit.run_study` runs.

    Raises:
        BadInput: The file does not exist or is not TOML, a setting is wrong, or the data set has no
            client of a name.

    Examples:
        >>> import fedaudit as fa
        >>> from pathlib import Path
        >>> _ = Path("mine.toml").write_text("name = 'mine'\\n[data]\\nname = 'digits'\\n")
        >>> fa.read_study("mine.toml", {"training.rounds": 3}).training.rounds
        3
    """
    folder = None if data_dir is None else Path(data_dir)
    return read_studies(Path(path), overrides, partial(with_target_numbers, data_dir=folder))[0]


def with_target_numbers(settings: dict[str, object], *, data_dir: Path | None) -> dict[str, object]:
    """Return the settings of a study file with numbers instead of names in ``audit.targets``.

    Raises:
        BadInput: The data set has no client of that name, or names no clients.
    """
    audit, data = settings.get("audit"), settings.get("data")
    if not isinstance(audit, Mapping) or not isinstance(data, Mapping):
        return settings
    targets, options = audit.get("targets"), data.get("options", {})
    # Settings of other types are refused when the study is validated.
    if not isinstance(targets, list) or not isinstance(options, dict):
        return settings
    if not any(isinstance(value, str) for value in targets):
        return settings
    reference = PartReference(str(data.get("name")), options)
    numbers = target_numbers(targets, reference, data_dir)
    return {**settings, "audit": {**audit, "targets": numbers}}


def target_numbers(
    values: Sequence[object], data: PartReference, data_dir: Path | str | None
) -> list[object]:
    """Return the numbers of clients, of which some may be named as in the data.

    Raises:
        BadInput: The data set has no client of that name, or names no clients.
    """
    by_name = [
        value
        for value in values
        if isinstance(value, str) and not value.removeprefix("client ").isdecimal()
    ]
    names: dict[int, str] = {}
    if by_name:
        folder = None if data_dir is None else Path(data_dir)
        names = dict(enumerate(client_names_of(data.name, folder, data.options)))
        if not names:
            raise BadInput(
                f"targets names the client {by_name[0]!r}, but the data set {data.name!r} names no "
                "clients; give its number"
            )
    return [number_of_client(v, names) if isinstance(v, str) else v for v in values]
