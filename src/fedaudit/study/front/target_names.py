"""Names of audited clients in settings, resolved to the numbers of clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.naming import number_of_client
from fedaudit.core.objects import PartReference
from fedaudit.datasets.catalog import client_names_of


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
