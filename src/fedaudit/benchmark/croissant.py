"""Metadata of a suite in the Croissant format (JSON-LD), by which data sets are found and read."""

import hashlib
import json
from pathlib import Path

from fedaudit.benchmark.suite import ANSWERS, SIGNALS, SUITE_FILE, Suite, suite_text
from fedaudit.core.files import write_atomically

CROISSANT_FILE = "croissant.json"
_TENSORS = {
    SIGNALS: "Tensors: target, the audited client; N/rounds; N/clients; N/bases, the number of the "
    "model that each client received in each round; and N/signal/NAME, float of shape (rounds, "
    "clients, samples), NaN if a client was not measured. N is 0 for the attacked federation, and "
    "1, 2, ... for reference federations",
    ANSWERS: "Tensors: is_member, boolean of shape (samples); and scores/NAME, double, the score "
    "of each sample by the attack NAME",
}
"""Tensors of the files in each folder."""
_VERSION = "http://mlcommons.org/croissant/1.0"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataBiases": "cr:dataBiases",
    "dataCollection": "cr:dataCollection",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "personalSensitiveInformation": "cr:personalSensitiveInformation",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_FIELDS = {
    "name": ("sc:Text", "Name of the recording, and of its files"),
    "regime": ("sc:Text", "Federation that was recorded"),
    "seed": ("sc:Integer", "Seed of data, clients, membership and training"),
    "target": ("sc:Integer", "Audited client"),
    "clients": ("sc:Integer", "Number of clients"),
    "rounds": ("sc:Integer", "Number of measured rounds"),
    "samples": ("sc:Integer", "Number of audited samples"),
}
"""Type and meaning of each field of a recording."""


def write_croissant(suite: Suite, folder: Path) -> None:
    """Write the metadata of a suite next to its description."""
    text = json.dumps(_metadata(suite), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / CROISSANT_FILE, text)


def _metadata(suite: Suite) -> dict[str, object]:
    regimes = ", ".join(regime.name for regime in suite.regimes)
    described = suite_text(suite).encode()
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _VERSION,
        "name": "fedaudit-benchmark",
        "version": f"{suite.version}.0.{suite.seed}",
        "description": "Frozen recordings of federated-learning runs that leak membership "
        f"({regimes}), for the comparison of membership inference attacks. {SIGNALS}/ has what an "
        "adversary measures: signals by round, client and audited sample. "
        f"{ANSWERS}/ has the true membership and the scores of known attacks, which an attack "
        "must not read.",
        "license": "https://www.apache.org/licenses/LICENSE-2.0",
        "url": "https://pypi.org/project/fedaudit/",
        "citeAs": f"fedaudit benchmark, seed {suite.seed}, made by fedaudit {suite.fedaudit}",
        "isLiveDataset": False,
        "dataCollection": "Simulated by `fedaudit benchmark`; the settings of each federation are "
        f"in {SUITE_FILE}.",
        "personalSensitiveInformation": "No features of samples. Losses and similarities of "
        "gradients, and the membership of samples of public or generated data sets.",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": SUITE_FILE,
                "name": SUITE_FILE,
                "description": "Regimes and recordings, with the digest of every file",
                "contentUrl": SUITE_FILE,
                "encodingFormat": "application/json",
                "contentSize": f"{len(described)} B",
                "sha256": hashlib.sha256(described).hexdigest(),
            },
            *(
                {
                    "@type": "cr:FileObject",
                    "@id": file.path,
                    "name": file.path,
                    "description": f"{meaning} of the recording {entry.name}. {_TENSORS[kind]}",
                    "contentUrl": file.path,
                    "encodingFormat": "application/octet-stream",
                    "contentSize": f"{file.bytes} B",
                    "sha256": file.sha256,
                }
                for entry in suite.recordings
                for file, kind, meaning in (
                    (entry.signals, SIGNALS, "Signals"),
                    (entry.answers, ANSWERS, "Membership, and scores of known attacks,"),
                )
            ),
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "recordings",
                "name": "recordings",
                "description": "One row for each recording",
                "key": {"@id": "recordings/name"},
                "field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"recordings/{name}",
                        "name": name,
                        "description": meaning,
                        "dataType": kind,
                        "source": {
                            "fileObject": {"@id": SUITE_FILE},
                            "extract": {"jsonPath": f"$.recordings[*].{name}"},
                        },
                    }
                    for name, (kind, meaning) in _FIELDS.items()
                ],
            }
        ],
    }
