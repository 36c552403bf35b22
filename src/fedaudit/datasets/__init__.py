"""Data sets, their partition among clients, and the choice of audited samples.

>>> import fedaudit as fa
>>> data = fa.datasets.digits()

``csv``, ``parquet``, ``npz``, ``idx``, ``cifar`` and ``images`` read files by their path, or by
their name in the data directory; ``hf`` loads from Hugging Face; ``diabetes``, ``digits`` and
``synthetic`` need no file; ``samples`` takes arrays and ``dataframe`` a table in memory. Each data
set is defined in a file of its name.
"""

from typing import TYPE_CHECKING

from fedaudit.core.lazy import lazy_names

if TYPE_CHECKING:
    from fedaudit.datasets.dataset import Dataset as Dataset

    # Data sets are searched for in the order of these formats.
    # isort: off
    from fedaudit.datasets.formats.npz import npz as npz
    from fedaudit.datasets.formats.idx import idx as idx
    from fedaudit.datasets.formats.cifar import cifar as cifar
    from fedaudit.datasets.formats.images import images as images
    from fedaudit.datasets.formats.csv import csv as csv
    from fedaudit.datasets.formats.parquet import parquet as parquet

    # isort: on
    from fedaudit.datasets.arrays import samples as samples
    from fedaudit.datasets.dataset import DataSource as DataSource
    from fedaudit.datasets.generated.diabetes import diabetes as diabetes
    from fedaudit.datasets.generated.digits import digits as digits
    from fedaudit.datasets.generated.synthetic import synthetic as synthetic
    from fedaudit.datasets.hubs.hf import hf as hf
    from fedaudit.datasets.tables.dataframe import dataframe as dataframe
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
