"""Export formats by name, and the function that writes an export."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedaudit.core.errors import BadInput, format_option, unknown_name
from fedaudit.core.files import raise_if_other_suffix, write_atomically
from fedaudit.exports.cyclonedx import bill_of_materials
from fedaudit.exports.estimates import estimates_csv, estimates_parquet
from fedaudit.exports.evidence import Evidence
from fedaudit.exports.in_toto import statement
from fedaudit.exports.model_card import model_card
from fedaudit.exports.ro_crate import write_crate


class Options(NamedTuple):
    """Options of exports; each format uses some of them.

    Attributes:
        sign: Ed25519 private key (PEM).
        agent: Person who ran the audit, as "Name" or "Name <IRI>".
        organisation: Organisation that operates the environment, in the same form.
    """

    sign: Path | None = None
    agent: str = ""
    organisation: str = ""


class Format(NamedTuple):
    """Format of an export.

    Attributes:
        what: Name of the output in messages.
        suffix: Suffix of the file; empty if the output is a folder.
        content: Function that returns the content of the file; None if the output is a folder.
    """

    what: str
    suffix: str
    content: Callable[[Evidence, Options], str | bytes] | None


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "in-toto": Format(
            "an in-toto attestation", ".json", lambda e, options: statement(e, options.sign)
        ),
        "ro-crate": Format("a Five Safes RO-Crate", "", None),
        "cyclonedx": Format("a CycloneDX model card", ".json", lambda e, _: bill_of_materials(e)),
        "model-card": Format("a Hugging Face model card", ".md", lambda e, _: model_card(e)),
        "csv": Format("a table of all estimates", ".csv", lambda e, _: estimates_csv(e.record)),
        "parquet": Format(
            "a table of all estimates", ".parquet", lambda e, _: estimates_parquet(e.record)
        ),
    }
)


def format_named(name: str) -> Format:
    """Return a format.

    Raises:
        BadInput: There is no such format.
    """
    if name not in FORMATS:
        raise unknown_name("export format", name, FORMATS)
    return FORMATS[name]


def write_export(evidence: Evidence, name: str, out: Path, options: Options) -> None:
    """Write an export to a new file or folder.

    Raises:
        BadInput: The file exists or has another suffix, a package is not installed, or an option
            is missing.
    """
    chosen = format_named(name)
    if options.sign is not None and name != "in-toto":
        raise BadInput(
            f"{format_option('sign')} is only for the format in-toto, but the format is {name!r}; "
            "leave it out (a signature of the pack itself stays valid)"
        )
    if chosen.content is None:
        write_crate(evidence, out, agent=options.agent, organisation=options.organisation)
        return
    raise_if_other_suffix(out, chosen.suffix, format_name=chosen.what)
    if out.exists():
        raise BadInput(
            f"{out} already exists; give another file with {format_option('out')}, or delete it"
        )
    write_atomically(out, chosen.content(evidence, options))
