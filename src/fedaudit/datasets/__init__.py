"""Data sets, how they are dealt to clients, and which samples are audited.

>>> import fedaudit as fa
>>> data = fa.datasets.digits()

``npz``, ``idx``, ``cifar`` and ``images`` read files by their path, or by their name in the data
directory; ``hf`` loads from Hugging Face; ``digits`` and ``synthetic`` need no file; ``samples``
takes arrays in memory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.naming import DataPart, Setting, changed_options

if TYPE_CHECKING:
    from fedaudit.datasets.dataset import Dataset
    from fedaudit.datasets.in_memory import InMemory

__all__ = ["Dataset", "cifar", "digits", "hf", "idx", "images", "npz", "samples", "synthetic"]


def digits(*, test_share: float = 0.2) -> DataPart:
    """Return 1,797 handwritten digits of 8 x 8 pixels, which are bundled with scikit-learn.

    Args:
        test_share: Share of each class in the test part, in (0, 1).

    Examples:
        >>> digits().what
        'digits'
    """
    return _part("digits", digits, test_share=test_share)


def synthetic(
    *,
    samples: int = 100_000,
    dimensions: int = 60,
    classes: int = 10,
    test_share: float = 0.2,
    people: int = 0,
    alike: float = 0.5,
) -> DataPart:
    """Return normal features labelled by a random linear classifier.

    Args:
        samples: Number of samples in both parts together.
        dimensions: Number of features.
        classes: Number of classes.
        test_share: Share of each class in the test part, in (0, 1).
        people: Number of people that the samples are of; 0 for none.
        alike: Share of the variance that the samples of a person have in common, in [0, 1].

    Examples:
        >>> synthetic(samples=2_000, classes=4).options
        {'samples': 2000, 'classes': 4}

    Source: SIA, section 4.1 (Synthetic); generator of its published code.
    Differs: The test share is taken within each class, not over the whole set.
    """
    return _part(
        "synthetic",
        synthetic,
        samples=samples,
        dimensions=dimensions,
        classes=classes,
        test_share=test_share,
        people=people,
        alike=alike,
    )


def npz(
    path: Path | str,
    /,
    *,
    test_share: float = 0.2,
    standardise: bool = True,
    first_label: int = 0,
    labels: str = "y",
    distinct: bool = False,
    longest: int = 0,
    tokenizer: str = "",
    group: str = "",
    subject: str = "",
) -> DataPart:
    """Return the data set of a NumPy file.

    The file holds ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``, of which
    a random part is held out for testing.

    Args:
        path: Of the file, or its name in the data directory.
        test_share: Share of each class in the test part, for ``x`` and ``y`` only.
        standardise: Whether features get mean 0 and standard deviation 1.
        first_label: Label of the first class in the file.
        labels: Name of the array of classes or targets.
        distinct: Whether only the first of equal samples is kept, for ``x`` only.
        longest: Number of columns of ``x`` that are kept; 0 for all.
        tokenizer: "minilm" if ``x`` holds texts as bytes, filled up with zeros.
        group: Column that divides people into groups, for coded tables.
        subject: Array that says which person each sample of ``x`` is from.

    Raises:
        BadInput: The path is no path.

    Examples:
        >>> npz("data/tumours.npz", standardise=False).what
        'npz:tumours'
    """
    return _of_path(
        "npz",
        path,
        npz,
        test_share=test_share,
        standardise=standardise,
        first_label=first_label,
        labels=labels,
        distinct=distinct,
        longest=longest,
        tokenizer=tokenizer,
        group=group,
        subject=subject,
    )


def idx(
    path: Path | str,
    /,
    *,
    prefix: str = "",
    first_label: int = 0,
    transposed: bool = False,
    standardise: bool = True,
) -> DataPart:
    """Return the data set of four IDX files, as of MNIST, plain or ``.gz``.

    Args:
        path: Folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the same for
            ``t10k`` or ``test``.
        prefix: Beginning of the file names, such as ``emnist-letters-``.
        first_label: Label of the first class; 1 for EMNIST letters.
        transposed: Whether rows and columns of the images are exchanged, as in EMNIST.
        standardise: Whether pixels get mean 0 and standard deviation 1.

    Raises:
        BadInput: The path is no path.

    Examples:
        >>> idx("mnist").what
        'idx:mnist'
    """
    return _of_path(
        "idx",
        path,
        idx,
        prefix=prefix,
        first_label=first_label,
        transposed=transposed,
        standardise=standardise,
    )


def cifar(path: Path | str, /, *, coarse: bool = False, standardise: bool = True) -> DataPart:
    """Return CIFAR-10 from ``cifar-10-batches-py``, or CIFAR-100 from ``cifar-100-python``.

    Args:
        path: The folder.
        coarse: Whether CIFAR-100 is labelled by its 20 superclasses.
        standardise: Whether pixels get mean 0 and standard deviation 1 for each channel.

    Raises:
        BadInput: The path is no path.

    Examples:
        >>> cifar("cifar-100-python", coarse=True).options
        {'coarse': True}
    """
    return _of_path("cifar", path, cifar, coarse=coarse, standardise=standardise)


def images(
    path: Path | str,
    /,
    *,
    size: int = 0,
    grey: bool = False,
    test_share: float = 0.2,
    standardise: bool = True,
) -> DataPart:
    """Return the data set of a folder of pictures with a folder for each class.

    Args:
        path: Folder with ``train/CLASS/*`` and ``test/CLASS/*``, or with ``CLASS/*``.
        size: Side in pixels that every picture is resized to; 0 if all have one size.
        grey: Whether only brightness is kept.
        test_share: Share of each class in the test part, if there is no folder for it.
        standardise: Whether pixels get mean 0 and standard deviation 1 for each channel.

    Raises:
        BadInput: The path is no path.

    Examples:
        >>> images("pictures", size=32).options
        {'size': 32}
    """
    return _of_path(
        "images", path, images, size=size, grey=grey, test_share=test_share, standardise=standardise
    )


def hf(
    name: str,
    /,
    *,
    config: str = "",
    features: str = "",
    label: str = "label",
    size: int = 0,
    grey: bool = False,
    test_share: float = 0.2,
    standardise: bool = True,
    subject: str = "",
) -> DataPart:
    """Return a data set of pictures or rows of numbers from Hugging Face or its local cache.

    Args:
        name: On the hub, such as "ylecun/mnist".
        config: Which of the data set's configurations; empty for the only one.
        features: Column of pictures or of rows of numbers; empty for ``image`` or ``img``.
        label: Column of class indices.
        size: Side in pixels that pictures are resized to; 0 if all have one size.
        grey: Whether only brightness is kept.
        test_share: Share of each class in the test part, if the data set has none.
        standardise: Whether features get mean 0 and standard deviation 1.
        subject: Column that says which person each sample is from; empty for none.

    Examples:
        >>> hf("ylecun/mnist").what
        'hf:ylecun/mnist'
    """
    options: dict[str, Setting] = {
        "config": config,
        "features": features,
        "label": label,
        "size": size,
        "grey": grey,
        "test_share": test_share,
        "standardise": standardise,
        "subject": subject,
    }
    return DataPart(f"hf:{name}", changed_options(hf, options))


def samples(
    x: object,
    y: object,
    x_test: object = None,
    y_test: object = None,
    *,
    name: str = "samples",
    test_share: float = 0.2,
    standardise: bool = False,
    subject: object = None,
) -> "InMemory":
    """Return a data set of arrays, tensors, tables or lists.

    Args:
        x: Features, one row for each sample: numbers, or images as bytes, channels last; or a
            dictionary of what a model takes by name.
        y: Class of each sample, counted from 0; for other tasks the target.
        x_test: Features of the test part; without it, a part of ``x`` is drawn for each seed.
        y_test: Classes of the test part.
        name: Of the data set, for the report.
        test_share: Share of each class that is drawn for testing, in (0, 1).
        standardise: Whether features get mean 0 and standard deviation 1 over the training part.
        subject: Name or number of the person that each sample is from, for ``unit="person"``; those
            of ``x_test`` after those of ``x``.

    Raises:
        BadInput: Not one label for each sample, half of a test part, or persons of other samples.

    Examples:
        >>> samples([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], name="toy").name
        'toy'
    """
    from fedaudit.datasets.in_memory import samples as in_memory

    return in_memory(
        x,
        y,
        x_test,
        y_test,
        name=name,
        test_share=test_share,
        standardise=standardise,
        subject=subject,
    )


def _part(name: str, maker: Callable[..., DataPart], **options: Setting) -> DataPart:
    return DataPart(name, changed_options(maker, options))


def _of_path(
    kind: str, path: object, maker: Callable[..., DataPart], **options: Setting
) -> DataPart:
    if not isinstance(path, Path | str):
        raise BadInput(f"{kind} data are named by a path, got {type_of(path)}")
    given = Path(path)
    if kind == "npz":
        # The data directory's names are without it.
        given = given.with_suffix("") if given.suffix == ".npz" else given
    is_there = given.exists() or given.with_suffix(".npz").exists()
    folder = given.absolute().parent if is_there or given.name != str(path) else None
    return DataPart(f"{kind}:{given.name}", changed_options(maker, options), folder)


def __getattr__(name: str) -> object:
    if name != "Dataset":
        raise AttributeError(f"module 'fedaudit.datasets' has no attribute {name!r}")
    # Not before it is asked for: it loads torch.
    from fedaudit.datasets.dataset import Dataset

    return Dataset


def __dir__() -> list[str]:
    return __all__
