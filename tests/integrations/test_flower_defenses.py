"""Upload defenses as Flower mods."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Params
from fedaudit.defenses import DEFENSES
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.cofedmid.neutral import NeutralNoise
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.quantize import GradientQuantization
from fedaudit.defenses.sparsify import GradientSparsification
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.integrations.flower import client_id_mod, defense_mod
from fedaudit.observe.round import Update, Upload
from tests.integrations.federation import CLIENTS, StubGrid, client_app, initial
from tests.live.federation import data, network


def uploads(app: ClientApp) -> dict[int, Params]:
    """Return the update of each client in one round."""
    grid, start = StubGrid(app), initial()
    content = RecordDict({"arrays": start, "config": ConfigRecord({"server-round": 1})})
    grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()])
    base = start.to_torch_state_dict()
    places = {node: c.node_config["partition-id"] for node, c in grid.contexts.items()}
    return {
        int(places[reply.metadata.src_node_id]): {
            name: value - base[name]
            for name, value in reply.content["arrays"].to_torch_state_dict().items()
        }
        for reply in grid.received
    }


def length(params: Params) -> float:
    return float(torch.cat([value.flatten() for value in params.values()]).norm())


def test_clipping_keeps_the_direction_of_an_upload() -> None:
    plain = uploads(client_app())
    clipped = uploads(client_app([defense_mod(ClientDP(0.05, 0.0), network)]))
    for client, change in plain.items():
        assert length(change) > 0.05
        assert length(clipped[client]) == pytest.approx(0.05, rel=1e-4)
        for name, value in change.items():
            torch.testing.assert_close(
                clipped[client][name], value * 0.05 / length(change), rtol=1e-3, atol=1e-6
            )


def test_neutral_defenses_send_undefended_uploads() -> None:
    plain = uploads(client_app())
    for defense in (Defense(), GradientNoise(0.0), ClientDP(float("inf"), 0.0)):
        for client, change in uploads(client_app([defense_mod(defense, network)])).items():
            for name, value in change.items():
                torch.testing.assert_close(value, plain[client][name], rtol=0, atol=1e-7)


def test_sparse_and_quantized_uploads_have_few_values() -> None:
    sparse = uploads(client_app([defense_mod(GradientSparsification(0.9), network)]))
    for change in sparse.values():
        entries = torch.cat([value.flatten() for value in change.values()])
        assert (entries != 0).float().mean() == pytest.approx(0.1, abs=0.01)
    coarse = uploads(client_app([defense_mod(GradientQuantization(2), network)]))
    for change in coarse.values():
        # Adding the model and subtracting it again rounds the values.
        assert len(set(change["1.weight"].mul(1e5).round().flatten().tolist())) <= 5


def test_noise_is_random_unless_seeded() -> None:
    def noisy(seed: int | None) -> Tensor:
        change = uploads(client_app([defense_mod(GradientNoise(0.1), network, seed=seed)]))
        return torch.stack([change[client]["1.weight"] for client in range(CLIENTS)])

    plain = uploads(client_app())
    first, second = noisy(None), noisy(None)
    assert (first != second).float().mean() > 0.99
    assert torch.equal(noisy(4), noisy(4))
    added = noisy(4) - torch.stack([plain[client]["1.weight"] for client in range(CLIENTS)])
    assert added.std() == pytest.approx(0.1, rel=0.05)
    assert (added[0] != added[1]).float().mean() > 0.99, "each client draws separate noise"


def final(app: ClientApp) -> Params:
    result = FedAvg().start(StubGrid(app), initial(), num_rounds=2)
    return dict(result.arrays.to_torch_state_dict())


def test_coalition_noise_cancels_in_the_flower_average() -> None:
    sizes = {client: float(len(samples)) for client, samples in data().clients.items()}
    weights = {client: size / sum(sizes.values()) for client, size in sizes.items()}
    noise = NeutralNoise(clients=(0, 1), sigma=0.5, ratio=1.0)
    outsider = defense_mod(Defense(), network)
    member = defense_mod(noise, network, seed=3, weights=weights)

    def coalition_mod(message: Message, context: Context, call_next: object) -> Message:
        mod = member if context.node_config["partition-id"] in (0, 1) else outsider
        return mod(message, context, call_next)  # type: ignore[arg-type]

    defended = uploads(client_app([coalition_mod]))
    assert length({n: v - uploads(client_app())[0][n] for n, v in defended[0].items()}) > 1
    plain = final(client_app())
    for name, value in final(client_app([coalition_mod])).items():
        torch.testing.assert_close(value, plain[name], rtol=1e-4, atol=1e-5)


def test_cancelling_noise_needs_a_shared_seed_and_weights() -> None:
    with pytest.raises(BadInput, match="share a seed and know all weights"):
        defense_mod(NeutralNoise(clients=(0, 1)), network)
    mod = defense_mod(GradientNoise(0.1), network, seed=1)
    grid = StubGrid(ClientApp(mods=[mod]), partitions=False)
    message = Message(RecordDict({"arrays": initial()}), next(iter(grid.contexts)), "train")
    with pytest.raises(BadInput, match="clients with a common seed would draw the same"):
        mod(message, grid.contexts[message.metadata.dst_node_id], lambda m, c: m)


SETTINGS = {
    "gradient-noise": {"sigma": 0.1},
    "client-dp": {"clip": 1.0, "noise_multiplier": 0.1},
    "sparsification": {"ratio": 0.5},
    "quantization": {"bits": 4},
    "filter": {"path": "tests.integrations.test_flower_defenses:halved"},
}


def halved(update: Params) -> Params:
    return {name: value / 2 for name, value in update.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_upload_defenses_work_with_an_unmodified_app(name: str) -> None:
    mod = defense_mod(DEFENSES[name](**SETTINGS[name]), network)  # type: ignore[arg-type]
    plain = uploads(client_app([client_id_mod]))
    for client, change in uploads(client_app([client_id_mod, mod])).items():
        assert all(change[key].shape == value.shape for key, value in plain[client].items())
        assert not torch.equal(change["1.weight"], plain[client]["1.weight"])


IN_TRAINING = {
    "dp-sgd": ({"clip": 1.0, "noise_multiplier": 1.0}, "gradient"),
    "mixup": ({"alpha": 1.0}, "batch"),
    "relaxloss": ({"target_loss": 1.0}, "loss"),
    "data-sampling": ({"share": 0.5}, "batches"),
    "ldp-laplace": ({"epsilon": 1.0, "clip": 1.0}, "prepare"),
}


@pytest.mark.parametrize("name", IN_TRAINING)
def test_training_defenses_raise_as_a_mod(name: str) -> None:
    settings, hook = IN_TRAINING[name]
    defense = DEFENSES[name](**settings)  # type: ignore[arg-type]
    for candidate in (defense, Chain((GradientNoise(0.1), defense))):
        with pytest.raises(Unsupported, match=f"acts in training .*{hook}.* sees only uploads"):
            defense_mod(candidate, network)


class Counting(Defense):
    """A defense with a state: it counts its rounds."""

    def __init__(self) -> None:
        self.rounds = torch.zeros(1)

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        assert isinstance(upload, Update)
        self.rounds = self.rounds + 1
        assert context.round == int(self.rounds)
        return upload

    def state(self) -> Params:
        return {"rounds": self.rounds}

    def restore(self, state: Params) -> None:
        self.rounds = state["rounds"]


def test_defense_state_is_kept_in_the_node_state() -> None:
    defense = Counting()
    grid = StubGrid(client_app([defense_mod(defense, network)]))
    FedAvg().start(grid, initial(), num_rounds=3)
    states = [c.state.array_records["fedaudit.defense"] for c in grid.contexts.values()]
    assert [record["rounds"].numpy().tolist() for record in states] == [[3.0]] * CLIENTS
    assert defense.rounds == 0, "nodes share nothing"


def test_buffers_and_array_formats_are_kept() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))

    def answer(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        trained = [np.asarray(a + 1 if a.shape else a + 5) for a in arrays]
        return Message(RecordDict({"arrays": ArrayRecord(trained)}), reply_to=message)

    values = [value.numpy() for value in net().state_dict().values()]
    grid = StubGrid(client_app())
    node = next(iter(grid.contexts))
    message = Message(RecordDict({"arrays": ArrayRecord(values)}), node, "train", group_id="2")
    mod = defense_mod(GradientSparsification(0.99), net)
    sent = mod(message, grid.contexts[node], answer).content["arrays"]
    sent_arrays = dict(zip(net().state_dict(), sent.to_numpy_ndarrays(), strict=True))
    assert list(sent) == [str(place) for place in range(len(values))]
    assert sent_arrays["2.num_batches_tracked"] == 5
    assert sent_arrays["2.num_batches_tracked"].dtype == "int64"
    assert (sent_arrays["2.running_mean"] == 1).all(), "buffers are as the client sent them"
    assert [sent_arrays[n].dtype == v.numpy().dtype for n, v in net().state_dict().items()]


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), "numpy.ndarray", b"no array"),
        Array(np.array(["a"])),
        Array(np.zeros(2, np.complex64)),
    ],
)
def test_invalid_arrays_raise_before_training(array: Array) -> None:
    mod = defense_mod(GradientNoise(0.1), network)
    arrays = initial()
    arrays["1.weight"] = array
    grid = StubGrid(ClientApp(mods=[mod]))
    message = Message(RecordDict({"arrays": arrays}), next(iter(grid.contexts)), "train")
    trained = Mock()
    with pytest.raises(BadInput, match=r"array cannot be read|'1\.weight', which holds"):
        mod(message, grid.contexts[message.metadata.dst_node_id], trained)
    trained.assert_not_called()


def test_a_different_client_model_raises() -> None:
    grid = StubGrid(client_app())
    node = next(iter(grid.contexts))
    message = Message(RecordDict({"arrays": initial()}), node, "train")
    other = defense_mod(Defense(), nn.Linear(3, 2))
    with pytest.raises(BadInput, match="only one of them has"):
        other(message, grid.contexts[node], lambda m, c: m)
