import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Setting
from fedaudit.models import MODELS, architecture


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def built(name: str, shape: tuple[int, ...], classes: int = 10, **settings: Setting) -> nn.Module:
    return architecture(name, shape=shape, classes=classes, **settings).build()


def test_the_dense_network_has_one_hidden_layer_of_200_by_default() -> None:
    assert parameters(built("mlp", (600,), 10)) == 600 * 200 + 200 + 200 * 10 + 10
    deeper = built("mlp", (600,), 10, hidden="200,100")
    assert parameters(deeper) == 600 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10
    assert parameters(built("mlp", (600,), 10, hidden="")) == 6010


def test_the_cnn_has_the_parameter_count_of_the_source_inference_paper() -> None:
    assert parameters(built("cnn", (1, 28, 28))) == 643_850
    without_the_last = built("cnn", (1, 28, 28), hidden="512")
    assert parameters(without_the_last) == 582_026


def test_alexnet_has_the_parameter_count_of_the_fedmia_code() -> None:
    assert parameters(built("alexnet", (3, 32, 32), 100)) == 2_495_396


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_parameter_count_of_resnet_equals_the_fedmia_code(norm: str) -> None:
    assert parameters(built("resnet18", (3, 32, 32), 100, norm=norm)) == 11_220_132


def test_vgg_has_two_hidden_layers_or_one_linear_layer() -> None:
    assert parameters(built("vgg11", (3, 32, 32))) == 9_756_426
    assert parameters(built("vgg11", (3, 32, 32), hidden="")) == 9_231_114


def test_the_wide_network_has_the_expected_parameter_count() -> None:
    first, last, linear = 3 * 16 * 9 + 16, 2 * 256, 256 * 100 + 100

    def stage(inputs: int, outputs: int) -> int:
        widening = 2 * inputs + (9 * inputs * outputs + outputs)
        keeping = 2 * outputs + (9 * outputs**2 + outputs)
        shortcut = 2 * inputs + (inputs * outputs + outputs)
        return widening + keeping + shortcut + 2 * keeping

    stages = [stage(16, 64), stage(64, 128), stage(128, 256)]
    assert stages == [121_600, 525_952, 2_100_480]
    counts = [
        parameters(built("wide-resnet", (3, 32, 32), 100, norm=n)) for n in ("group", "batch")
    ]
    assert counts == [first + sum(stages) + last + linear] * 2 == [2_774_692] * 2
    # A stage has two norms of its inputs and three of its outputs; one norm follows all stages.
    scales = 2 * (2 * (16 + 64 + 128) + 3 * (64 + 128 + 256) + 256)
    assert parameters(built("wide-resnet", (3, 32, 32), 100, norm="none")) == 2_774_692 - scales
    assert parameters(built("wide-resnet", (3, 32, 32))) == 2_774_692 - 90 * 257


@pytest.mark.parametrize("norm", ["group", "none"])
def test_the_wide_network_matches_a_layerwise_computation(norm: str) -> None:
    torch.manual_seed(0)
    module = built("wide-resnet", (3, 12, 12), 5, depth=10, width=2, norm=norm).double()
    for parameter in module.parameters():  # Initial scales are 1 and shifts 0.
        nn.init.normal_(parameter, std=0.3)
    values = iter(module.parameters())

    def normal(x: Tensor) -> Tensor:
        if norm == "none":
            return x
        groups = x.reshape(len(x), 16, -1)
        spread = groups.var(2, correction=0, keepdim=True).add(1e-5).sqrt()
        level = ((groups - groups.mean(2, keepdim=True)) / spread).reshape(x.shape)
        return level * next(values)[:, None, None] + next(values)[:, None, None]

    def convolved(x: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        return functional.conv2d(x, next(values), next(values), stride=stride, padding=padding)

    x = torch.randn(4, 3, 12, 12, dtype=torch.float64)
    y = convolved(x)
    for stride in (1, 2, 2):
        inner = convolved(normal(y.relu()), stride)
        inner = convolved(normal(inner.relu()))
        y = inner + convolved(normal(y.relu()), stride, padding=0)
    assert y.shape == (4, 128, 3, 3)
    expected = functional.linear(normal(y.relu()).mean((2, 3)), next(values), next(values))
    torch.testing.assert_close(module(x), expected)
    assert not list(values)


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("mlp", (8, 8), {}),
        ("cnn", (1, 8, 8), {"padding": 2}),
        ("cnn", (3, 32, 32), {"dropout": 0.5}),
        ("alexnet", (3, 29, 64), {}),
        ("alexnet", (3, 64, 64), {}),
        ("resnet18", (1, 8, 8), {"width": 32}),
        ("resnet18", (3, 9, 7), {"width": 8, "norm": "batch"}),
        ("vgg11", (1, 32, 33), {}),
        ("wide-resnet", (1, 8, 8), {"depth": 10, "width": 1}),
        ("wide-resnet", (3, 9, 7), {"norm": "batch", "width": 1}),
        ("wide-resnet", (3, 9, 7), {"norm": "none", "width": 1}),
    ],
)
def test_outputs_are_finite_and_all_parameters_have_gradients(
    name: str, shape: tuple[int, ...], settings: dict[str, Setting]
) -> None:
    torch.manual_seed(0)
    module = built(name, shape, 7, **settings)
    outputs = module(torch.randn(3, *shape))
    assert outputs.shape == (3, 7)
    gradients = torch.autograd.grad(outputs.square().sum(), list(module.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_no_network_changes_tensors_in_place() -> None:
    sizes = {"mlp": (1, 32, 32), "transformer": (9,)}
    for name in MODELS.keys() - {"diffusion", "minilm"}:
        for layer in built(name, sizes.get(name, (3, 32, 32))).modules():
            assert not getattr(layer, "inplace", False)


@pytest.mark.parametrize(("name", "width"), [("resnet18", 32), ("wide-resnet", 1)])
def test_group_normalisation_does_not_mix_samples_in_training(name: str, width: int) -> None:
    torch.manual_seed(0)
    module = built(name, (3, 8, 8), width=width).train()
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(module(x)[:1], module(x[:1]))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (1, 8, 8), "1x8x8 are too small for model 'cnn'; set padding to 2"),
        ("alexnet", (1, 28, 28), "1x28x28 are too small .* at least 29 x 29"),
        ("vgg11", (3, 31, 32), "3x31x32 are too small .* at least 32 x 32"),
        ("cnn", (600,), "channels x height x width, got samples of shape 600"),
        ("wide-resnet", (600,), "'wide-resnet' needs images .* got samples of shape 600"),
        ("resnet18", (28, 28), "'resnet18' needs images .* got samples of shape 28x28"),
        ("mlp", (), "at least one axis"),
        ("mlp", (0, 3), "each of at least 1"),
    ],
)
def test_samples_that_do_not_fit_are_refused_before_anything_runs(
    name: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        architecture(name, shape=shape, classes=10)


@pytest.mark.parametrize(
    ("name", "setting", "value", "message"),
    [
        ("resnet18", "norm", "layer", "norm of ResNet18 takes 'group' or 'batch', got 'layer'"),
        ("resnet18", "width", 40, "multiple of 32 for norm='group', got 40"),
        ("wide-resnet", "norm", "layer", "'group' or 'batch' or 'none', got 'layer'"),
        ("wide-resnet", "depth", 18, "10, 16, 22 or another number 6n .* got 18"),
        ("wide-resnet", "depth", 1006, "up to 1000.* got 1006"),
        ("wide-resnet", "width", 0, "width of WideResNet takes a whole number from 1"),
        ("mlp", "hidden", "200;100", "such as '200' or '512,128', got '200;100'"),
        *(
            (model, "hidden", text, "at most 1000 layer widths from 1 to 1,000,000,000,000,000")
            for model in ("mlp", "cnn", "vgg11")
            for text in (
                "9" * 30,
                "200," + "9" * 5000,
                "1" + "0" * 14 + "1",
                ",".join(["2"] * 1001),
            )
        ),
        ("mlp", "hidden", "0", "layer widths from 1 to"),
        ("mlp", "dropout", 1.0, r"in \[0, 1\), got 1.0"),
        ("cnn", "padding", -1, "padding of CNN takes a whole number from 0 .*got -1"),
    ],
)
def test_out_of_range_settings_raise_with_the_allowed_range(
    name: str, setting: str, value: Setting, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        architecture(name, shape=(3, 32, 32), classes=10, **{setting: value})


@pytest.mark.parametrize("hidden", ["100000000000", "1000000", "9" * 15])
def test_a_model_that_is_too_large_is_refused_before_it_is_built(hidden: str) -> None:
    with pytest.raises(BadInput, match="choose smaller settings"):
        architecture("mlp", shape=(784,), classes=3000, hidden=f"{hidden},{hidden}")


@pytest.mark.parametrize(("name", "extra"), [("diffusion", "generative"), ("minilm", "text")])
def test_a_missing_extra_raises_with_install_command(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.core.importing.find_spec", lambda package: None)
    with pytest.raises(BadInput, match=rf"not installed; pip install 'fedaudit\[{extra}\]'"):
        architecture(name, shape=(3, 32, 32) if name == "diffusion" else (9,), classes=3)
