"""Tasks: losses, errors and readings of a module's outputs."""

import pickle
from functools import partial
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.core.modules import raise_if_unusable_model
from fedaudit.core.objects import part_reference
from fedaudit.core.task_catalogue import TASKS, of_loss, task_named
from fedaudit.core.tasks import OutputKind, PerSampleLoss, missing_outputs_message, pack_inputs
from fedaudit.core.values import Architecture, Samples
from fedaudit.datasets.dataset import prepare_samples

FOUR = torch.zeros(4, 3)


def test_one_logit_has_the_loss_and_the_probabilities_of_a_sigmoid() -> None:
    task, z = task_named("binary", {}), torch.tensor([[2.0], [-1.0], [0.0], [5.0]])
    y = task.targets(FOUR, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    outputs = task.outputs(nn.Identity(), z)
    expected = functional.binary_cross_entropy_with_logits(z[:, 0], y.float(), reduction="none")
    torch.testing.assert_close(task.losses(outputs, y), expected)
    torch.testing.assert_close(outputs.softmax(1)[:, 1], z[:, 0].sigmoid())
    assert task.utility.per_sample(outputs, y).tolist() == [1, 1, 0, 0]


def test_several_labels_have_the_mean_of_their_losses_and_errors() -> None:
    task = task_named("multi-label", {})
    outputs, y = torch.tensor([[0.0, 3.0]]), torch.tensor([[1, 0]])
    targets = task.targets(torch.zeros(1, 1), y)
    by_hand = (torch.log(torch.tensor(2.0)) + torch.log1p(torch.exp(torch.tensor(3.0)))) / 2
    torch.testing.assert_close(task.losses(outputs, targets), by_hand[None])
    assert task.utility.per_sample(outputs, targets).tolist() == [1.0]
    assert task.output_width(FOUR, targets) == 2


def test_regression_losses_do_not_depend_on_the_shape_of_targets() -> None:
    task = task_named("regression", {})
    targets = task.targets(FOUR, torch.tensor([1, 2, 3, 4]))
    outputs = torch.tensor([1.0, 0.0, 3.0, 1.0])
    for each in (outputs, outputs[:, None]):
        assert task.losses(each, targets).tolist() == [0, 4, 0, 9]


def test_padding_counts_in_no_tokens_loss() -> None:
    task = task_named("next-token", {"padding": 9})
    tokens = torch.tensor([[1, 2, 0, 9, 9], [1, 0, 2, 1, 9]])
    targets = task.targets(tokens, torch.zeros(2, dtype=torch.int64))
    outputs = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    logs = outputs.log_softmax(2)
    by_hand = [
        -(logs[0, 0, 2] + logs[0, 1, 0]) / 2,
        -(logs[1, 0, 0] + logs[1, 1, 2] + logs[1, 2, 1]) / 3,
    ]
    torch.testing.assert_close(task.losses(outputs, targets), torch.stack(by_hand))


@pytest.mark.parametrize(
    ("name", "features", "targets", "message"),
    [
        ("classification", FOUR, torch.rand(4), "class indices from 0.*'regression'"),
        ("classification", FOUR, torch.tensor([0, 1, -1, 0]), "class indices from 0"),
        ("binary", FOUR, torch.tensor([0, 1, 2, 0]), "0 or 1.*'classification'"),
        ("binary", FOUR, torch.tensor([0, 1, torch.nan, 1]), "from 0 to 1, 1 of them infinite or"),
        ("multi-label", FOUR, torch.tensor([0, 1, 0, 0]), "one row of zeros and ones"),
        ("regression", FOUR, torch.tensor([0, 1, float("nan"), 0]), "1 of 4 .*not finite numbers"),
        ("next-token", torch.tensor([[3, 0, 0], [1, 2, 0]]), FOUR[:2, 0], "1 of 2 sequences"),
        ("next-token", torch.tensor([[3], [4]]), FOUR[:2, 0], "no token to predict"),
        ("next-token", torch.tensor([[3, -4], [4, 5]]), FOUR[:2, 0], "at least 0, got -4"),
    ],
)
def test_targets_of_another_kind_are_refused_in_a_sentence(
    name: str, features: Tensor, targets: Tensor, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        task_named(name, {}).targets(features, targets)


def test_invalid_tokens_raise() -> None:
    task = task_named("next-token", {"vocabulary": 4})
    with pytest.raises(BadInput, match="a vocabulary of 4, token ids must be at most 3, got 7"):
        task.targets(torch.tensor([[1, 7]]), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(BadInput, match=r"whole numbers.*standardise to false"):
        task.features(torch.tensor([[0.5, 1.0]]), torch.zeros(1))


@pytest.mark.parametrize(
    ("name", "outputs", "message"),
    [
        ("binary", torch.zeros(4, 2), "one logit per sample"),
        ("regression", torch.zeros(4, 2), r"shape \(4, 1\), got \(4, 2\)"),
        ("multi-label", torch.zeros(4, 1), r"shape \(4, 3\), got \(4, 1\)"),
        ("next-token", torch.zeros(4, 7), r"must return logits \(samples, positions"),
    ],
)
def test_outputs_of_another_kind_are_refused_in_a_sentence(
    name: str, outputs: Tensor, message: str
) -> None:
    task = task_named(name, {})
    tokens = torch.ones(4, 3, dtype=torch.int64)
    targets_by_task = {"regression": torch.rand(4), "binary": torch.zeros(4), "multi-label": FOUR}
    targets = task.targets(tokens, targets_by_task.get(name, torch.zeros(4)))
    with pytest.raises(BadInput, match=message):
        task.losses(task.extract_outputs(outputs), targets)


def test_only_tensors_and_objects_with_logits_are_outputs() -> None:
    task, logits = task_named("classification", {}), torch.zeros(2, 3)
    for outputs in (logits, SimpleNamespace(logits=logits), {"logits": logits}):
        assert task.extract_outputs(outputs) is logits
    with pytest.raises(BadInput, match=r"dictionary with 'logits', got a tuple"):
        task.extract_outputs((logits,))


@pytest.mark.parametrize("name", TASKS)
def test_a_pickled_task_is_equal(name: str) -> None:
    task = task_named(name, {})
    assert pickle.loads(pickle.dumps(task)) == task
    assert hash(task) == hash(task_named(name, {}))


def test_custom_losses_are_tasks_and_unknown_names_raise() -> None:
    task = task_named("torch.nn.functional:pairwise_distance", {"p": 1.0})
    outputs, targets = torch.zeros(2, 3), torch.ones(2, 3)
    torch.testing.assert_close(
        task.losses(outputs, targets), torch.full((2,), 3.0), atol=1e-4, rtol=0
    )
    assert task.output_kinds == OutputKind.NOTHING
    with pytest.raises(BadInput, match="'regression'"):
        task_named("regresion", {})


def test_missing_readings_of_a_task_are_listed() -> None:
    message = missing_outputs_message(
        "the attack 'fta-c'", OutputKind.POSTERIOR, task_named("regression", {})
    )
    assert message == (
        "the attack 'fta-c' needs probabilities of classes, which the task 'regression' does not "
        "have"
    )


def test_packed_inputs_are_unpacked_unchanged() -> None:
    arrays = {
        "input_ids": torch.randint(0, 30_000, (5, 7)),
        "attention_mask": torch.ones(5, 7, dtype=torch.bool),
        "boxes": torch.rand(5, 2, 4),
    }
    inputs, features = pack_inputs(arrays)
    assert features.shape == (5, 7 + 7 + 8)
    for name, value in inputs.unpack(features).items():
        assert torch.equal(value, arrays[name].long() if name != "boxes" else arrays[name])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "got none"),
        ({"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)}, "a: 2, b: 3"),
        ({"a": torch.zeros(1, 1), "b": torch.tensor([[2**24 + 1]])}, "'b' has .* 16777216 are"),
        ({"ids": torch.tensor([[1, 2]]), "k": torch.tensor(3)}, "'k' is a single number"),
    ],
)
def test_inputs_that_cannot_be_packed_are_refused(arrays: dict[str, Tensor], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        pack_inputs(arrays)


def test_operations_on_samples_keep_targets_labels_and_inputs() -> None:
    classes = Samples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    part = classes.take(slice(0, 2))
    assert part.labels is part.targets
    assert len(classes.parts) == 3
    numbers = Samples({"a": torch.zeros(4, 2), "b": torch.ones(4, 1)}, torch.rand(4))
    assert numbers.labels.tolist() == [0, 0, 0, 0]
    assert len(numbers.parts) == 4
    both = Samples.concatenate(numbers.take(torch.tensor([3, 1])), numbers.take(slice(0, 1)))
    assert both.inputs == numbers.inputs
    assert torch.equal(both.targets, numbers.targets[[3, 1, 0]])


def test_tokens_may_be_separate_targets_but_groups_are_not() -> None:
    task, tokens = task_named("next-token", {}), torch.tensor([[1, 2, 3], [4, 5, 6]])
    books = torch.tensor([0, 7])
    assert torch.equal(task.targets(tokens, books), tokens)
    for separate_targets in (tokens * 2, (tokens * 2).float()):
        assert torch.equal(task.targets(tokens, separate_targets), tokens * 2)
    with pytest.raises(BadInput, match="shifted by one position"):
        task.targets(tokens, torch.tensor([[2, 3, 0], [5, 6, 0]]))


def test_tokens_are_the_first_of_several_inputs() -> None:
    data = Samples({"input_ids": torch.tensor([[1, 2], [3, 4]]), "mask": torch.ones(2, 2)}, [0, 1])
    prepared = prepare_samples(data, task_named("next-token", {}))
    assert prepared.targets.tolist() == [[1, 2], [3, 4]]


def _detached(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0].detach() - targets).square()


def _centred(outputs: Tensor, targets: Tensor) -> Tensor:
    each = (outputs[:, 0] - targets).square()
    return each - each.mean()


def _endless(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0] / 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (_detached, "no gradient with respect to the outputs"),
        (_centred, "depends on the other samples"),
        (_endless, "infinite or not a number for 3 of 3 samples before"),
    ],
)
def test_a_loss_that_mixes_samples_is_refused(loss: PerSampleLoss, message: str) -> None:
    net = Architecture("net", partial(nn.Linear, 3, 1), task=of_loss("own", loss))
    with pytest.raises(BadInput, match=message):
        raise_if_unusable_model(net.initial(0), Samples(torch.randn(4, 3), torch.zeros(4)))


def test_non_finite_targets_of_a_custom_task_raise() -> None:
    data = Samples(torch.zeros(2, 3), torch.tensor([0.0, float("nan")]))
    with pytest.raises(BadInput, match="1 of 2 targets are infinite or not a number"):
        prepare_samples(data, of_loss("own", _centred))


def test_lists_of_different_lengths_raise() -> None:
    with pytest.raises(BadInput, match="all of the same length"):
        Samples([[1, 2], [3]], [0, 1])


def test_masked_tokens_are_excluded_from_the_loss() -> None:
    task, tokens = task_named("next-token", {"padding": 9}), torch.tensor([[1, 2, 3], [4, 5, 6]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    data = Samples({"input_ids": tokens, "attention_mask": mask}, [0, 1])
    prepared = prepare_samples(data, task)
    assert prepared.targets.tolist() == [[1, 2, 9], [4, 5, 6]]
    assert prepared.inputs is not None
    assert torch.equal(prepared.inputs.unpack(prepared.features)["input_ids"], tokens)
    with pytest.raises(BadInput, match="1 of 2 sequences have no token to predict"):
        prepare_samples(
            Samples(
                {"input_ids": tokens, "attention_mask": mask * torch.tensor([[0], [1]])}, [0, 1]
            ),
            task,
        )


def test_unknown_settings_of_a_loss_raise() -> None:
    with pytest.raises(BadInput, match=r"settings nope: .*unexpected keyword"):
        task_named("tests.core.test_tasks:_endless", {"nope": 5})


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (functional.cross_entropy, "cross_entropy returns one number for all samples"),
        (functional.mse_loss, "pass the task 'regression' instead"),
        (nn.CrossEntropyLoss, "CrossEntropyLoss is a class"),
        (partial(functional.l1_loss, reduction="sum"), "pass such a function"),
    ],
)
def test_torch_losses_with_reduction_raise_at_once(loss: PerSampleLoss, text: str) -> None:
    start = perf_counter()
    with pytest.raises(BadInput, match=text):
        fa.audit(fa.Federation("digits", task=loss))
    assert perf_counter() - start < 10


def test_torch_losses_without_reduction_are_accepted() -> None:
    start = perf_counter()
    part = part_reference(functional.cross_entropy, {"reduction": "none"}, kind="task")  # type: ignore[arg-type]
    assert perf_counter() - start < 10
    assert part.name == "torch.nn.functional:cross_entropy"
    assert part.options == {"reduction": "none"}
    task = task_named(part.name, {"reduction": "none"})
    assert task.losses(torch.zeros(2, 3), torch.tensor([0, 1])).shape == (2,)
