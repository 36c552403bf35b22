"""The catalogue's networks with their settings, for :class:`fedaudit.Federation`."""

from fedaudit.core.naming import NamedPart, Setting, changed_options


def MLP(*, hidden: str = "200", dropout: float = 0.0) -> NamedPart:
    """Return a fully connected network with ReLU; samples of any shape are flattened first.

    Args:
        hidden: Widths of the hidden layers, "200" or "200,100"; empty is a linear model.
        dropout: Share of hidden units left out in each training step, in [0, 1); 0 is none.

    Examples:
        >>> MLP(hidden="64,32").what
        'mlp'

    Source: SIA, Table II(b) (one hidden layer of 200).
    """
    return NamedPart("mlp", changed_options(MLP, {"hidden": hidden, "dropout": dropout}))


def CNN(
    *,
    channels: str = "32,64",
    hidden: str = "512,128",
    kernel: int = 5,
    padding: int = 0,
    dropout: float = 0.0,
) -> NamedPart:
    """Return a network of convolutions, each with 2x2 max-pooling and ReLU, and linear layers.

    Args:
        channels: Output channels of each convolution.
        hidden: Widths of the fully connected hidden layers.
        kernel: Side of the convolution windows, at least 1.
        padding: Zeros around the image before each convolution, at least 0; images of 8x8 pixels
            need 2.
        dropout: Share of hidden units left out in each training step, in [0, 1); 0 is none.

    Examples:
        >>> CNN(channels="16,32", padding=2).options
        {'channels': '16,32', 'padding': 2}

    Source: SIA, Table II(a).
    Differs: ReLU acts after the pooling, not before: same values, same gradients, less work.
    """
    options: dict[str, Setting] = {
        "channels": channels,
        "hidden": hidden,
        "kernel": kernel,
        "padding": padding,
        "dropout": dropout,
    }
    return NamedPart("cnn", changed_options(CNN, options))


def AlexNet() -> NamedPart:
    """Return AlexNet's five convolutions with one linear layer, for images of 29x29 and larger.

    Examples:
        >>> AlexNet().what
        'alexnet'

    Source: FedMIA, section 4.1 and its code.
    """
    return NamedPart("alexnet")


def VGG11(*, hidden: str = "512,512") -> NamedPart:
    """Return VGG-11 with batch normalisation, for images of 32x32 and larger.

    Args:
        hidden: Widths of the fully connected hidden layers; empty is the usual VGG for 32x32.

    Examples:
        >>> VGG11(hidden="").options
        {'hidden': ''}

    Source: IFCA-MIR, appendix A.1.
    """
    return NamedPart("vgg11", changed_options(VGG11, {"hidden": hidden}))


def ResNet18(*, norm: str = "group", width: int = 64) -> NamedPart:
    """Return ResNet-18 with a 3x3 first convolution.

    Args:
        norm: "group" for group normalisation in 32 groups, or "batch".
        width: Channels of the first stage, a multiple of 32 with "group".

    Examples:
        >>> ResNet18(norm="batch").options
        {'norm': 'batch'}

    Source: FedMIA, section 4.1 and its code (group normalisation); CoFedMID, section 5.1.
    """
    return NamedPart("resnet18", changed_options(ResNet18, {"norm": norm, "width": width}))


def WideResNet(*, depth: int = 16, width: int = 4, norm: str = "group") -> NamedPart:
    """Return a wide residual network, by default WRN-16-4 with group normalisation.

    Args:
        depth: Layers with weights: 6 times the blocks of a stage, and 4; up to 1,000.
        width: Channels of the first stage in multiples of 16.
        norm: "group" for group normalisation in 16 groups, "batch", or "none".

    Examples:
        >>> WideResNet(depth=22).options
        {'depth': 22}

    Source: Zagoruyko and Komodakis 2016; De et al. 2022, section 3; CoFedMID, section 5.1.
    """
    options: dict[str, Setting] = {"depth": depth, "width": width, "norm": norm}
    return NamedPart("wide-resnet", changed_options(WideResNet, options))


def Transformer(*, layers: int = 2, width: int = 128, heads: int = 4) -> NamedPart:
    """Return a causal transformer over tokens, such as bytes of text, for the task "next-token".

    Args:
        layers: Number of blocks of attention and a hidden layer of four times the width.
        width: Embedding dimension, a multiple of ``heads``.
        heads: Number of attention heads.

    Examples:
        >>> Transformer(layers=1).options
        {'layers': 1}

    Source: Radford et al. 2019 (GPT-2), section 2.3.
    """
    options = {"layers": layers, "width": width, "heads": heads}
    return NamedPart("transformer", changed_options(Transformer, options))


def MiniLM(*, rank: int = 8, alpha: float = 16.0, prompt: int = 0) -> NamedPart:
    """Return frozen MiniLM-L6 with LoRA adapters, a trained prompt and a head; extra ``text``.

    Args:
        rank: Of the adapters; 0 for none.
        alpha: Scale of the adapters, divided by their rank.
        prompt: Number of trained prompt tokens before each text; 0 for none.

    Examples:
        >>> MiniLM(rank=4).options
        {'rank': 4}

    Source: Wang et al. 2020 (MiniLM); Hu et al. 2022 (LoRA); Lester et al. 2021 (prompt tuning).
    """
    options = {"rank": rank, "alpha": alpha, "prompt": prompt}
    return NamedPart("minilm", changed_options(MiniLM, options))


def Diffusion(*, width: int = 48, weights: str = "") -> NamedPart:
    """Return a frozen diffusion model whose embeddings of concepts clients train.

    For the task "denoising"; needs the extra ``generative``.

    Args:
        width: Channels of the first level, a multiple of 16.
        weights: File of the pretrained network; without it, the network is random.

    Examples:
        >>> Diffusion(width=32).options
        {'width': 32}

    Source: FedMIA, section 4.1; Gal et al. 2023 (textual inversion), section 4.2; Ho et al. 2020.
    """
    return NamedPart("diffusion", changed_options(Diffusion, {"width": width, "weights": weights}))
