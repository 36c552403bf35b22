"""Readers of files from other programs: checkpoints of PyTorch and tables of signals."""

import io
import zipfile

import torch
from torch import nn

from fedaudit.live.checkpoints.files import read_checkpoint
from fedaudit.live.tables.columns import columns_of
from fedaudit.live.tables.layout import audit_of, layout_of
from fedaudit.live.tables.record import references_of
from fedaudit.live.tables.signals import signals_of
from fuzz.target import file

TABLE = b"""round,client,sample,owner,label,loss,confidence,cosine
1,a,0,a,0,0.5,0.6,0.1
1,a,1,,1,1.5,0.2,-0.1
1,b,0,a,0,0.75,0.5,0
1,b,1,,1,1.25,0.3,1e-3
"""

REFERENCES = b"""model,sample,trained,loss
a,0,0,0.5
a,1,1,1.5
b,0,1,0.75
b,1,0,1.25
"""


def saved(stored: object) -> bytes:
    """Return the archive that torch writes."""
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    return buffer.getvalue()


def checkpoint(content: bytes) -> None:
    """Read a whole archive."""
    read_checkpoint(file("model.pt", content))


def checkpoint_seeds() -> list[bytes]:
    return [saved(nn.Linear(2, 2).state_dict()), saved(nn.Linear(2, 2))]


def pickle_of_checkpoint(content: bytes) -> None:
    """Read a pickle in an archive with valid other entries."""
    archive = saved(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            target.writestr(name, content if name.endswith("/data.pkl") else source.read(name))
    read_checkpoint(file("model.pt", changed.getvalue()))


def pickle_seeds() -> list[bytes]:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    stored = [net, net.state_dict(), {"model": net.state_dict(), "epoch": 3}]
    pickles = []
    for value in stored:
        with zipfile.ZipFile(io.BytesIO(saved(value))) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            pickles.append(archive.read(name))
    return pickles


def table(content: bytes) -> None:
    """Read a CSV file of signals."""
    columns = columns_of(file("table.csv", content), "the table")
    signals_of(columns)
    audit_of(columns, layout_of(columns), None, fair=False)


def table_seeds() -> list[bytes]:
    return [TABLE]


def references(content: bytes) -> None:
    """Read a CSV file of reference models, for a valid table."""
    columns = columns_of(file("table.csv", TABLE), "the table")
    references_of(file("references.csv", content), columns, layout_of(columns))


def references_seeds() -> list[bytes]:
    return [REFERENCES]
