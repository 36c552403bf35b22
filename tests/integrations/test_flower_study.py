"""A study whose clients train on Flower's nodes ends with the hash that it has here."""

import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedaudit.core.errors import BadInput
from fedaudit.engines.base import Counted
from fedaudit.integrations.flower import study_client
from fedaudit.integrations.flower.client_app import DATA_DIR
from fedaudit.integrations.flower.server_app import FlowerNodes, carry_out
from fedaudit.integrations.flower.study_messages import studies_of
from fedaudit.results.read import read_record
from fedaudit.study.running.run import run_study
from fedaudit.study.settings.file import chosen_studies
from fedaudit.study.settings.sections import Study
from tests.integrations.federation import SUPERLINK, StubGrid

# By its place among modules: the package has a function of the same name.
SERVER = sys.modules["fedaudit.integrations.flower.server_app"]

STUDY = """
name = "small"
[partition]
scheme = "iid"
clients = 4
samples_per_client = 100
[training]
rounds = 2
epochs = 1
batch_size = 20
[audit]
fair = 90
[figures]
permutations = 20
blind_classifier = false
[defense]
name = "gradient-noise"
clients = [1, 2]
options = { sigma = 0.01 }
[attacks.fedmia-1]
[variants.ifca]
"algorithm.name" = "ifca"
[variants.cofedmid]
"defense.name" = "cofedmid"
"defense.options" = {}
[variants.shadow]
"attacks.seqmia" = {}
[variants.planted]
"figures.planted_leak" = true
[variants.sampled]
"training.participation" = 0.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def named(file: Path, variant: str = "") -> Study:
    return chosen_studies(studies_of(file, {}), variant)[0]


def hashed(study: Study, folder: Path, engine: Counted | None = None) -> str:
    return run_study(study, folder, engine=engine).content_hash


@pytest.mark.parametrize("variant", ["", "ifca", "cofedmid", "shadow", "planted", "sampled"])
def test_a_study_has_the_same_hash_on_nodes_as_here(
    variant: str, file: Path, tmp_path: Path
) -> None:
    study = named(file, variant)
    grid = StubGrid(study_client(file), nodes=2)
    found = hashed(study, tmp_path / "nodes", FlowerNodes(grid, study, nodes=2))
    assert found == hashed(study, tmp_path / "here")
    federations = 2 if variant == "shadow" else 1
    assert len(grid.sent) == federations * 2 * 2, "every node once a round"


@pytest.mark.parametrize("nodes", [1, 3, 9])
def test_it_is_the_same_on_any_number_of_nodes_and_those_that_are_late(
    nodes: int, file: Path, tmp_path: Path
) -> None:
    study = named(file)
    grid = StubGrid(study_client(file), nodes=nodes, late=1)
    found = hashed(study, tmp_path / "nodes", FlowerNodes(grid, study, nodes=nodes))
    assert found == hashed(study, tmp_path / "here")
    assert len({m.metadata.dst_node_id for m in grid.sent}) == min(nodes, 4)


class Faulty(StubGrid):
    """The first messages come to nothing, each in the way that is asked for."""

    def __init__(self, file: Path, *ways: str, nodes: int = 2) -> None:
        super().__init__(study_client(file), nodes=nodes)
        self.ways = list(ways)

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        way = self.ways.pop(0) if self.ways else ""
        if way == "gone":
            reply = Message(Error(5, "the node is not there"), reply_to=message)
            vars(reply.metadata)["_src_node_id"] = SUPERLINK
        elif way == "empty":
            reply.content.array_records.clear()
        elif way == "nonsense":
            reply.content["turns"] = ConfigRecord({"values": '{"done": 1}'})
        elif way == "nothing":
            reply = Message(RecordDict(), reply_to=message)
        elif way == "other":
            reply.content["tensors"] = ArrayRecord()
        elif way == "samples":
            turns = reply.content["turns"]
            number = re.sub(r'"samples":\d+', f'"samples":{10**400}', turns["values"])
            reply.content["turns"] = ConfigRecord({"values": number})
        elif way == "shouting":
            reply = Message(Error(1, "\x1b[2J\u202edied"), reply_to=message)
        elif way == "archive":
            array = Array("uint8", (2,), "numpy.ndarray", b"PK\x05\x06" + bytes(18))
            reply.content["tensors"] = ArrayRecord({"bytes": array})
        return reply


WAYS = ("gone", "empty", "nonsense", "nothing", "other", "samples", "shouting", "archive")


@pytest.mark.parametrize("way", WAYS)
def test_what_is_lost_on_a_node_is_done_again_by_another(
    way: str, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = named(file)
    grid = Faulty(file, way)
    found = hashed(study, tmp_path / "nodes", FlowerNodes(grid, study, nodes=2))
    assert found == hashed(study, tmp_path / "here")
    first, again = grid.sent[0], grid.sent[2]
    assert again.content == first.content
    assert again.metadata.dst_node_id != first.metadata.dst_node_id
    assert "round 1 of clients 0, 1 came to nothing on node" in caplog.text
    assert "\x1b" not in caplog.text


def test_a_study_ends_where_turns_come_to_nothing_everywhere_and_goes_on_later(
    file: Path, tmp_path: Path
) -> None:
    study, out = named(file), tmp_path / "nodes"
    grid = Faulty(file, "", "gone", "gone", "gone", nodes=1)
    with pytest.raises(BadInput, match=r"round 2 of clients 0, 1, 2, 3 came to nothing 3 times"):
        hashed(study, out, FlowerNodes(grid, study))
    grid = StubGrid(study_client(file), nodes=1)
    assert hashed(study, out, FlowerNodes(grid, study)) == hashed(study, tmp_path / "here")
    assert len(grid.sent) == 1, "the first round is done"


class Nobody(StubGrid):
    def get_node_ids(self) -> Iterable[int]:
        return []


def test_without_nodes_a_study_ends_after_a_while(file: Path, tmp_path: Path) -> None:
    study = named(file)
    engine = FlowerNodes(Nobody(study_client(file)), study, patience=0.2)
    begun = time.monotonic()
    with pytest.raises(BadInput, match=r"no node is there for round 1 of clients 0, 1, 2, 3"):
        hashed(study, tmp_path, engine)
    assert time.monotonic() - begun < 30


def test_a_node_with_another_study_refuses(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(STUDY.replace("batch_size = 20", "batch_size = 10"))
    study = named(file)
    with pytest.raises(BadInput, match=r"refuses round 1 .* another study than other.toml is"):
        hashed(study, tmp_path / "out", FlowerNodes(StubGrid(study_client(other)), study))


def test_a_node_of_another_version_refuses(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = named(file)
    monkeypatch.setattr(SERVER, "MADE", "fedaudit 0 with torch 1")
    with pytest.raises(BadInput, match="instead of fedaudit 0 with torch 1; install the same"):
        hashed(study, tmp_path, FlowerNodes(StubGrid(study_client(file)), study))


def test_a_node_with_other_data_refuses(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = named(file)
    monkeypatch.setattr(SERVER, "data_key", lambda federation: "other")
    with pytest.raises(BadInput, match=f"other data than the server.*{DATA_DIR}"):
        hashed(study, tmp_path, FlowerNodes(StubGrid(study_client(file)), study))


def test_clients_whose_models_are_large_travel_apart(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = named(file)
    monkeypatch.setattr(SERVER, "_LARGEST", 1)
    grid = StubGrid(study_client(file), nodes=1)
    found = hashed(study, tmp_path / "nodes", FlowerNodes(grid, study))
    assert found == hashed(study, tmp_path / "here")
    assert len(grid.sent) == 2 * 4


@pytest.mark.parametrize("setting", [{"nodes": 0}, {"patience": -1.0}])
def test_a_study_takes_a_node_and_some_patience(file: Path, setting: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="at least 1 node"):
        FlowerNodes(StubGrid(study_client(file)), named(file), **setting)  # type: ignore[arg-type]


def test_a_run_says_where_the_record_is_to_be_and_may_set_the_studys_settings(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"out": str(tmp_path / "out"), "nodes": 2, "training.rounds": 1, "variant": "ifca"}
    grid = StubGrid(study_client(file), nodes=2)
    for context in grid.contexts.values():
        context.run_config = config
    carry_out(file, grid, config)
    record = read_record(tmp_path / "out" / "record.json")
    assert record.name == "small-ifca"
    assert record.content_hash in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()
    assert len(grid.sent) == 2
