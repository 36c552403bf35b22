"""Reader of replies from Flower's nodes, as bytes from the network; needs Flower."""

from functools import cache
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto
from flwr.supercore.task_identity import TaskIdentity

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.integrations.flower.collector import FlowerRoundCollector
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import Recording, new_recording
from fuzz import client_arrays

# Flower's processes set these at their start, and messages need them.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class UnmeasuredRecorder(Recorder):
    """Recorder that accepts rounds but does not measure them."""

    def __init__(self) -> None:
        self.refusal: FedauditError | None = None

    @property
    def recording(self) -> Recording:
        settings = {"view": "uploads", "every": 1, "keep": "signals", "attacks": (), "classes": 2}
        return new_recording(Path("fuzzed"), "", targets=(1,), **settings)

    @property
    def sees_uploads(self) -> bool:
        return True

    def check_first_round(self, index: int, what: str) -> None:
        """Accept any round, since nothing was recorded before."""

    def round(self, index: int, **arguments: object) -> None:
        uploads = arguments["uploads"]
        assert isinstance(uploads, dict)
        for upload in uploads.values():
            try:
                client_arrays.record_upload(upload)
            except FedauditError as refusal:
                self.refusal = refusal

    def missed(self, index: int, reason: str, **arguments: object) -> None:
        self.refusal = BadInput(reason)


def _message(content: bytes) -> Message:
    """Return the message with this content.

    Raises:
        BadInput: Flower cannot parse it, so that it would not reach fedaudit.
    """
    try:
        return Message(recorddict_from_proto(Proto.FromString(content)), 7, "train")
    except Exception as error:
        raise BadInput(f"Flower cannot parse the message: {error}") from error


def _content(content: RecordDict) -> bytes:
    return bytes(recorddict_to_proto(content).SerializeToString())


def reply(content: bytes) -> None:
    """Read a client's reply as the recorder does."""
    sent = Message(RecordDict({"arrays": _arrays()}), 7, "train")
    vars(sent.metadata)["_message_id"] = "1"
    received = _message(content)
    vars(received.metadata)["_reply_to_message_id"] = "1"
    recorder = UnmeasuredRecorder()
    collector = FlowerRoundCollector(recorder, weighted_by="num-examples", reads_metrics=True)
    collector.add_messages(1, [sent])
    collector.add_replies([received])
    collector.close()
    if recorder.refusal is not None:
        raise recorder.refusal


@cache
def _arrays() -> ArrayRecord:
    return ArrayRecord(dict(client_arrays.module().state_dict()))


def reply_seeds() -> list[bytes]:
    content = {
        "arrays": _arrays(),
        "metrics": MetricRecord({"num-examples": 3, "losses": [0.1, 0.2]}),
        "fedaudit": ConfigRecord({"partition-id": 1}),
    }
    arrays = [Array(value.numpy()) for value in client_arrays.module().state_dict().values()]
    older = ArrayRecord({str(number): array for number, array in enumerate(arrays)})
    return [_content(RecordDict(each)) for each in (content, {**content, "arrays": older})]
