"""check-dp on Flower mods."""

import math

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

import flwr.client.mod as older
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedaudit.core.errors import BadInput
from fedaudit.defenses.clip import ClientDP
from fedaudit.filters.check import check_dp
from fedaudit.filters.claim import FilterAudit, FilterVerdict, Result
from fedaudit.integrations.flower import defense_mod

MULTIPLIER = math.sqrt(2 * math.log(1.25 / 1e-5)) / 5.0
"""Noise multiplier of Flower's mod at epsilon 5 and delta 1e-5."""


def local_dp() -> LocalDpMod:
    return LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=5.0, delta=1e-5)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


class Scaled(nn.Module):
    """A network with a parameter that has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.temperature = network(), nn.Parameter(torch.tensor(1.0))


def failed(audit: FilterAudit) -> set[str]:
    return {check.name for check in audit.of(Result.FAILED)}


def test_flower_clipping_mods_respect_the_servers_norm() -> None:
    for mod in (fixedclipping_mod, adaptiveclipping_mod):
        audit = check_dp(mod, sensitivity=0.5, sigma=0.0)
        assert audit.kind == "a Flower client mod"
        assert audit.verdict is FilterVerdict.SOUND, str(audit)
        assert "update of zeros causes ZeroDivisionError" in str(audit)
    assert "norm_bit" in str(audit)


def test_flower_local_dp_holds_only_for_add_or_remove_adjacency() -> None:
    audit = check_dp(local_dp, sensitivity=1.0, sigma=MULTIPLIER)
    assert audit.verdict is FilterVerdict.SOUND, str(audit)
    audit = check_dp(local_dp, sensitivity=1.0, sigma=MULTIPLIER, adjacency="replace", calls=16)
    assert failed(audit) == {"largest change of the output"}


def test_flower_mods_do_not_protect_scalar_parameters() -> None:
    audit = check_dp(local_dp, sensitivity=1.0, sigma=MULTIPLIER, shape_from=Scaled, calls=16)
    assert failed(audit) == {"largest change of the output", "outputs without noise"}
    assert "large only in 'temperature'" in str(audit)


def test_flower_mods_do_not_protect_batch_norm_counters() -> None:
    normalised = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    audit = check_dp(fixedclipping_mod, sensitivity=1.0, sigma=0.0, shape_from=normalised)
    assert failed(audit) == {"largest change of the output"}
    assert "large only in '1.num_batches_tracked'" in str(audit)


def test_a_defense_of_fedaudit_as_a_mod_is_sound() -> None:
    mod = defense_mod(ClientDP(1.0, 0.8), network)
    audit = check_dp(mod, sensitivity=1.0, sigma=0.8, shape_from=network, calls=32)
    assert audit.verdict is FilterVerdict.SOUND, str(audit)


def older_local_dp() -> older.LocalDpMod:
    return older.LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=5.0, delta=1e-5)


def test_clipping_mods_of_flowers_older_interface_are_sound() -> None:
    for mod in (older.fixedclipping_mod, older.adaptiveclipping_mod):
        audit = check_dp(mod, sensitivity=0.5, sigma=0.0, calls=16)
        assert audit.verdict is FilterVerdict.SOUND, str(audit)


def test_older_flower_local_dp_has_the_same_verdict() -> None:
    audit = check_dp(older_local_dp, sensitivity=1.0, sigma=MULTIPLIER)
    assert audit.verdict is FilterVerdict.SOUND, str(audit)
    audit = check_dp(older_local_dp, sensitivity=1.0, sigma=MULTIPLIER / 4)
    assert audit.verdict is FilterVerdict.SOUND, str(audit)
    audit = check_dp(older_local_dp, sensitivity=1.0, sigma=MULTIPLIER * 4)
    assert audit.verdict is not FilterVerdict.SOUND, str(audit)


@pytest.mark.parametrize("mod", [older.arrays_size_mod, older.message_size_mod])
def test_older_reporting_mods_do_not_clip(mod: Mod) -> None:
    assert failed(check_dp(mod, sensitivity=0.5, sigma=0.0, calls=16)) == {
        "largest change of the output"
    }


def noised_by_records(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add noise without clipping, as a custom mod for a NumPyClient."""
    received = message.content.array_records["fitins.parameters"]
    reply = call_next(message, context)
    sent = reply.content.array_records["fitres.parameters"]
    assert len(received) == len(sent)
    for name, array in sent.items():
        value = array.numpy()
        sent[name] = Array((value + np.random.normal(0, 0.8, value.shape)).astype(value.dtype))  # noqa: NPY002
    return reply


def test_faulty_custom_mods_for_the_older_interface_fail() -> None:
    audit = check_dp(noised_by_records, sensitivity=1.0, sigma=0.8, calls=16)
    assert failed(audit) == {"largest change of the output"}


def test_key_errors_of_a_mod_are_raised() -> None:
    def asking(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        raise KeyError("secret")

    with pytest.raises((BadInput, KeyError), match="secret"):
        check_dp(asking, sensitivity=1.0, sigma=0.0)


def noised(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add noise without clipping."""
    reply = call_next(message, context)
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    reply.content["arrays"] = ArrayRecord(
        {
            name: Array((value + np.random.normal(0, 0.8, value.shape)).astype(value.dtype))  # noqa: NPY002
            for name, value in arrays.items()
        }
    )
    return reply


def remembering(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Clip the update and add the clipped remainder to the update of the next round."""
    received = next(iter(message.content.array_records.values()))
    reply = call_next(message, context)
    sent = {}
    remainder = context.state.array_records.get("remainder")
    for name, array in reply.content["arrays"].items():
        change = array.numpy() - received[name].numpy()
        sent[name] = change + (remainder[name].numpy() if remainder else 0.0)
    length = math.sqrt(sum(float((value**2).sum()) for value in sent.values())) + 1e-9
    short = {name: value * min(1.0, 1.0 / length) for name, value in sent.items()}
    context.state["remainder"] = ArrayRecord({n: Array(sent[n] - short[n]) for n in sent})
    reply.content["arrays"] = ArrayRecord(
        {
            name: Array(received[name].numpy() + value + np.random.normal(0, 0.8, value.shape))  # noqa: NPY002
            for name, value in short.items()
        }
    )
    return reply


def reporting_length(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    trained = call_next(message, context).content["arrays"]["first.bias"].numpy()
    reply = local_dp()(message, context, call_next)
    reply.content["extra"] = ConfigRecord({"length": float(np.abs(trained).sum())})
    return reply


def test_faulty_mods_fail() -> None:
    audit = check_dp(noised, sensitivity=1.0, sigma=0.8, calls=16)
    assert failed(audit) == {"largest change of the output"}
    audit = check_dp(remembering, sensitivity=1.0, sigma=0.8, calls=16)
    assert failed(audit) == {"influence of earlier rounds"}
    audit = check_dp(reporting_length, sensitivity=1.0, sigma=MULTIPLIER, calls=16)
    assert failed(audit) == {"outputs without noise"}
    assert "extra.length" in str(audit)


def test_error_replies_of_a_mod_are_reported() -> None:
    def refusing(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        message.content["another"] = ArrayRecord()
        return fixedclipping_mod(message, context, call_next)

    with pytest.raises(BadInput, match="replies with an error: fixedclipping_mod expects exactly"):
        check_dp(refusing, sensitivity=1.0, sigma=0.0)
