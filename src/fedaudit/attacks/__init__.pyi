"""Signatures of attacks, which docs/pages.py computes from their parts."""

from typing import Literal

from fedaudit.attacks.base import Attack as Attack
from fedaudit.attacks.catalogue import ATTACKS as ATTACKS
from fedaudit.attacks.catalogue import ATTACK_SETS as ATTACK_SETS
from fedaudit.attacks.catalogue import CONSTRUCTORS as CONSTRUCTORS
from fedaudit.attacks.catalogue import DEFAULT_SET as DEFAULT_SET
from fedaudit.attacks.catalogue import SET_SETTINGS as SET_SETTINGS
from fedaudit.attacks.catalogue import SOURCE_ATTACKS as SOURCE_ATTACKS
from fedaudit.attacks.catalogue import attack_set as attack_set
from fedaudit.attacks.catalogue import catalogue_spellings as catalogue_spellings
from fedaudit.attacks.catalogue import resolve_attack as resolve_attack

__all__ = ['Attack', 'BlackboxLoss', 'GradCosine', 'GradNorm', 'GradDiff', 'LossSeries', 'AvgCosine', 'FedMIA1', 'FedMIA2', 'FTAC', 'FTAL', 'FTACGlobal', 'FTALGlobal', 'SeqMIA', 'RMIA', 'RMIASeries', 'LiRA', 'LiRASeries', 'StackedSignals', 'LossSeriesAware', 'FedMIA2Aware', 'AvgCosineControl', 'FedMIA2Control', 'AvgCosineCentredTail', 'FedMIA2CentredTail', 'AvgCosineWithoutTail', 'FedMIA2WithoutTail', 'LossRecovery', 'MinKPercent', 'MinKPercentPlusPlus', 'BaseReference', 'Zlib', 'ProjRes', 'AvgProjRes', 'FedMIAProjRes', 'Reconstruction', 'SIA', 'SIAMean', 'SIAProduct', 'SIALikelihood', 'SIACosine']

def BlackboxLoss(*, snapshot: Literal['local', 'global', 'received'] = 'local') -> Attack:
    """A member's loss is low at the client's last model.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Yeom et al. 2018."""

def GradCosine() -> Attack:
    """A member's gradient points along the last update.

    Source: Li et al. 2022."""

def GradNorm() -> Attack:
    """A member's gradient has a small norm at the last global model.

    Source: Nasr et al. 2019."""

def GradDiff(*, scale: Literal['raw', 'sum'] = 'raw') -> Attack:
    """Subtracting a member's gradient shortens the last update.

    Args:
        scale: Scale of the negative update. "raw" leaves it unscaled, like the published code. Its
            norm is then proportional to the learning rate, and the signal is mostly the negative
            squared norm of the sample's gradient. "sum" scales it to the sum of the gradients of
            the client's samples, for which the paper derived the threshold 0.

    Source: Li et al. 2022."""

def LossSeries(*, snapshot: Literal['local', 'global', 'received'] = 'local') -> Attack:
    """A member's loss is low over the rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Gu et al. 2022; Zhu et al. 2024 (FedMIA), section 4.1."""

def AvgCosine() -> Attack:
    """A member's gradient points along the updates over the rounds.

    Source: Li et al. 2022."""

def FedMIA1(*, snapshot: Literal['local', 'global', 'received'] = 'local', outlier_sigmas: float = 3.0, leave_one_out: bool = False, variance_floor: float = 0.0) -> Attack:
    """A member's loss under the target's models is below its loss under the other clients' models.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Zhu et al. 2024 (FedMIA), Eqs. (8)-(12), loss."""

def FedMIA2(*, outlier_sigmas: float = 3.0, leave_one_out: bool = False, variance_floor: float = 0.0) -> Attack:
    """A member's gradient is more similar to the target's update than to the other clients' updates.

    Args:
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Zhu et al. 2024 (FedMIA), Eqs. (7)-(12), cosine."""

def FTAC(*, snapshot: Literal['local', 'global', 'received'] = 'local') -> Attack:
    """A member's confidence rises faster over the rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Chen et al. 2024 (FTA-C); Bai et al. 2026 (CoFedMID), appendix D."""

def FTAL(*, snapshot: Literal['local', 'global', 'received'] = 'local') -> Attack:
    """A member's loss falls faster over the rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Chen et al. 2024 (FTA-L); Bai et al. 2026 (CoFedMID), appendix D."""

def FTACGlobal(*, snapshot: Literal['local', 'global', 'received'] = 'global') -> Attack:
    """A member's confidence rises faster over the rounds' global models.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Chen et al. 2024 (FTA-C), on the global models; Bai et al. 2026 (CoFedMID), appendix D."""

def FTALGlobal(*, snapshot: Literal['local', 'global', 'received'] = 'global') -> Attack:
    """A member's loss falls faster over the rounds' global models.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Chen et al. 2024 (FTA-L), on the global models; Bai et al. 2026 (CoFedMID), appendix D."""

def SeqMIA(*, snapshot: Literal['local', 'global', 'received'] = 'local', hidden: int = 50, epochs: int = 0, batch_size: int = 100, lr: float = 0.01, weight_decay: float = 0.0001) -> Attack:
    """A network that is trained on a shadow run recognises how members' outputs change over the rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        hidden: Size of the LSTM's state.
        epochs: Number of epochs of a single network; 0 for four networks with early stopping, of at
            most 150 epochs. The published code uses a single network and 150 epochs, in which it
            memorises a few hundred shadow samples.
        batch_size: Number of shadow samples per step.
        lr: Learning rate of Adam, which is multiplied by 0.9 every ten epochs while it is above
            5e-4.
        weight_decay: Weight decay of weights; biases have none.

    Source: Li et al. 2024 (SeqMIA), section 4; Bai et al. 2026 (CoFedMID), appendix D."""

def RMIA(*, snapshot: Literal['local', 'global', 'received'] = 'local', rounds: Literal['last', 'mean'] = 'last', offline: float = -1.0) -> Attack:
    """The last model that the adversary sees gives a member a higher likelihood than reference models that were not trained on it.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        rounds: "last" for the last measured round, "mean" for the mean of the logarithms over
            rounds.
        offline: Coefficient a, from 0 to 1, of the approximation for samples that no reference
            model was trained on: the mean over models that were and were not trained on the sample
            is about ((1 + a) * mean over models that were not + 1 - a) / 2. A larger a assumes that
            training on a sample raises its likelihood less; 1 assumes no effect. With -1, a is
            chosen from 0, 0.1, ..., 1. For this, the first four reference models are attacked, each
            with all others as reference models. The value with the largest mean AUC is used. With a
            single reference model, a is 0.3.

    Source: Zarifzadeh et al. 2024 (RMIA)."""

def RMIASeries(*, snapshot: Literal['local', 'global', 'received'] = 'local', rounds: Literal['last', 'mean'] = 'mean', offline: float = -1.0) -> Attack:
    """The models of all rounds give a member a higher likelihood than reference models of the same rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        rounds: "last" for the last measured round, "mean" for the mean of the logarithms over
            rounds.
        offline: Coefficient a, from 0 to 1, of the approximation for samples that no reference
            model was trained on: the mean over models that were and were not trained on the sample
            is about ((1 + a) * mean over models that were not + 1 - a) / 2. A larger a assumes that
            training on a sample raises its likelihood less; 1 assumes no effect. With -1, a is
            chosen from 0, 0.1, ..., 1. For this, the first four reference models are attacked, each
            with all others as reference models. The value with the largest mean AUC is used. With a
            single reference model, a is 0.3.

    Source: Zarifzadeh et al. 2024 (RMIA), over rounds."""

def LiRA(*, snapshot: Literal['local', 'global', 'received'] = 'local', rounds: Literal['last', 'mean'] = 'last', variance: Literal['fixed', 'each'] = 'fixed') -> Attack:
    """The last model that the adversary sees is more confident in a member's class than reference models that were not trained on it.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        rounds: "last" for the last measured round, "mean" for the mean of the scores over rounds.
        variance: "fixed" for the same variance for all samples, which is better with few reference
            models. "each" for a variance per sample.

    Source: Carlini et al. 2022 (LiRA)."""

def LiRASeries(*, snapshot: Literal['local', 'global', 'received'] = 'local', rounds: Literal['last', 'mean'] = 'mean', variance: Literal['fixed', 'each'] = 'fixed') -> Attack:
    """The models of all rounds are more confident in a member's class than reference models of the same rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        rounds: "last" for the last measured round, "mean" for the mean of the scores over rounds.
        variance: "fixed" for the same variance for all samples, which is better with few reference
            models. "each" for a variance per sample.

    Source: Carlini et al. 2022 (LiRA), over rounds."""

def StackedSignals(*, snapshot: Literal['local', 'global', 'received'] = 'local', scale: Literal['raw', 'sum'] = 'raw', penalty: float = 1.0, bags: int = 10) -> Attack:
    """A linear classifier that is trained on a shadow run weighs losses, cosines and gradients.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        scale: Scale of the negative update. "raw" leaves it unscaled, like the published code. Its
            norm is then proportional to the learning rate, and the signal is mostly the negative
            squared norm of the sample's gradient. "sum" scales it to the sum of the gradients of
            the client's samples, for which the paper derived the threshold 0.
        penalty: L2 penalty: 1 / C of scikit-learn's ``LogisticRegression``.
        bags: Number of bootstrap samples.

    Source: Shokri et al. 2017; Nasr et al. 2019, over signals of federations."""

def LossSeriesAware(*, snapshot: Literal['local', 'global', 'received'] = 'local') -> Attack:
    """A member's loss is low over the rounds in which the defense lets the target train on the member's class.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Gu et al. 2022 (Loss-Series), with knowledge of the classes that Bai et al. 2026 (CoFedMID) assign."""

def FedMIA2Aware() -> Attack:
    """A member's gradient is similar to the target's update in rounds in which the defense lets the target train on the member's class.

    Source: Zhu et al. 2024 (FedMIA-II), with knowledge of the classes that Bai et al. 2026 (CoFedMID) assign."""

def AvgCosineControl() -> Attack:
    """A member's gradient points along the target's control variates over the rounds.

    Source: Li et al. 2022 (Avg-Cosine), adapted to the control variates of Karimireddy et al. 2020 (SCAFFOLD)."""

def FedMIA2Control(*, outlier_sigmas: float = 3.0, leave_one_out: bool = False, variance_floor: float = 0.0) -> Attack:
    """A member's gradient is more similar to the target's control variate than to the other clients' control variates.

    Args:
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Zhu et al. 2024 (FedMIA-II), adapted to the control variates of Karimireddy et al. 2020 (SCAFFOLD)."""

def AvgCosineCentredTail(*, tail: float = 0.2) -> Attack:
    """A member's gradient points along the updates, after the mean of their last parameters, to which CoFedMID adds noise, is subtracted.

    Args:
        tail: Fraction of the parameters, counted from the last, to which the client adds the same
            random number, in (0, 1]. In a study, it defaults to that of the audited client's noise.

    Source: Li et al. 2022 (Avg-Cosine), with knowledge of where the published noise of Bai et al. 2026 (CoFedMID) is."""

def FedMIA2CentredTail(*, tail: float = 0.2, outlier_sigmas: float = 3.0, leave_one_out: bool = False, variance_floor: float = 0.0) -> Attack:
    """A member's gradient is most similar to the target's update, after the mean of each update's last parameters is subtracted.

    Args:
        tail: Fraction of the parameters, counted from the last, to which the client adds the same
            random number, in (0, 1]. In a study, it defaults to that of the audited client's noise.
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Zhu et al. 2024 (FedMIA-II), with knowledge of where the published noise of Bai et al. 2026 (CoFedMID) is."""

def AvgCosineWithoutTail(*, tail: float = 0.2) -> Attack:
    """A member's gradient points along the updates without their last parameters, to which CoFedMID adds noise.

    Args:
        tail: Fraction of the parameters, counted from the last, that is excluded, in (0, 1). In a
            study, it defaults to that of the audited client's noise.

    Source: Li et al. 2022 (Avg-Cosine), with knowledge of where the noise of Bai et al. 2026 (CoFedMID) is."""

def FedMIA2WithoutTail(*, tail: float = 0.2, outlier_sigmas: float = 3.0, leave_one_out: bool = False, variance_floor: float = 0.0) -> Attack:
    """A member's gradient is most similar to the target's update, without the updates' last parameters.

    Args:
        tail: Fraction of the parameters, counted from the last, that is excluded, in (0, 1). In a
            study, it defaults to that of the audited client's noise.
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Zhu et al. 2024 (FedMIA-II), with knowledge of where the noise of Bai et al. 2026 (CoFedMID) is."""

def LossRecovery(*, snapshot: Literal['local', 'global', 'received'] = 'local', first: int = 0, every: int = 2, floor: float = 0.01) -> Attack:
    """A member's loss falls further after a malicious client has raised it.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        first: Number of the first poisoned round. With 0, every measured round except the last
            counts as poisoned, and ``every`` is ignored. In a study, it defaults to that of the
            malicious client.
        every: Number of rounds from one poisoned round to the next, at least 2.
        floor: Offset above 0 that is added to every loss, so that a loss of 0 has a logarithm.

    Source: Nasr et al. 2019, active attacks; Mo et al. 2025 (FedPoisonMIA)."""

def MinKPercent(*, snapshot: Literal['local', 'global', 'received'] = 'local', share: float = 0.2) -> Attack:
    """The client's last language model gives a member's least likely tokens a high probability.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        share: Fraction of a sequence's tokens that is used, in (0, 1]; at least one token is used.

    Source: Shi et al. 2024 (Min-K%)."""

def MinKPercentPlusPlus(*, snapshot: Literal['local', 'global', 'received'] = 'local', share: float = 0.2) -> Attack:
    """The client's last language model gives a member's least likely tokens a higher probability than it expects at their positions.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        share: Fraction of a sequence's tokens that is used, in (0, 1]; at least one token is used.

    Source: Zhang et al. 2025 (Min-K%++)."""

def BaseReference() -> Attack:
    """The client's last model gives a member a lower loss than the initial model, such as a pretrained one.

    Source: Mireshghallah et al. 2022; Carlini et al. 2021."""

def Zlib(*, snapshot: Literal['local', 'global', 'received'] = 'local') -> Attack:
    """A member's loss under the client's last language model is low for the compressed size of its text.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.

    Source: Carlini et al. 2021."""

def ProjRes(*, layer: str = '', ridge: float = 0.0003) -> Attack:
    """A member's input to a linear layer is a linear combination of the rows of the layer's last update.

    Args:
        layer: Path of the layer in the network, such as ``"3"`` or ``"blocks.0.hidden.0"``. By
            default, it is the first of the layers whose update can span the most dimensions.
        ridge: Singular value, relative to the update's norm, at which a direction is removed by
            half, in (0, 1). For an update A divided by its norm, an input is multiplied by I -
            A'(AA' + ridge² I)⁻¹A.

    Source: Deng et al. 2026 (ProjRes)."""

def AvgProjRes(*, layer: str = '', ridge: float = 0.0003) -> Attack:
    """A member's input to a linear layer is a linear combination of the rows of the layer's update, over the rounds.

    Args:
        layer: Path of the layer in the network, such as ``"3"`` or ``"blocks.0.hidden.0"``. By
            default, it is the first of the layers whose update can span the most dimensions.
        ridge: Singular value, relative to the update's norm, at which a direction is removed by
            half, in (0, 1). For an update A divided by its norm, an input is multiplied by I -
            A'(AA' + ridge² I)⁻¹A.

    Source: Deng et al. 2026 (ProjRes), over rounds."""

def FedMIAProjRes(*, layer: str = '', ridge: float = 0.0003, outlier_sigmas: float = 3.0, leave_one_out: bool = False, variance_floor: float = 0.0) -> Attack:
    """A member's input to a linear layer is closer to the span of the rows of the target's update than to the spans of the other clients' updates.

    Args:
        layer: Path of the layer in the network, such as ``"3"`` or ``"blocks.0.hidden.0"``. By
            default, it is the first of the layers whose update can span the most dimensions.
        ridge: Singular value, relative to the update's norm, at which a direction is removed by
            half, in (0, 1). For an update A divided by its norm, an input is multiplied by I -
            A'(AA' + ridge² I)⁻¹A.
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Deng et al. 2026 (ProjRes), with the rule of Zhu et al. 2024 (FedMIA)."""

def Reconstruction() -> Attack:
    """A member resembles a sample that is computed from the update of the first layer, more than an unseen sample does.

    Source: Phong et al. 2018; Geiping et al. 2020."""

def SIA(*, snapshot: Literal['local', 'global', 'received'] = 'local', temperature: float = 1.0, prior: Literal['equal', 'size'] = 'equal') -> Attack:
    """A sample is from the client whose last model has the least loss on it.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        temperature: Divisor of the evidence for each client, such as the negative loss (the paper's
            gamma), from 1e-6 to 1e6. A smaller value sharpens the posterior. With equal priors, it
            does not change the order of clients.
        prior: Prior probability of each client. "equal" is the same for every client (the paper's
            1/K); "size" is proportional to the client's number of samples.

    Source: Hu et al. 2024 (SIA), Algorithms 1-3."""

def SIAMean(*, snapshot: Literal['local', 'global', 'received'] = 'local', temperature: float = 1.0, prior: Literal['equal', 'size'] = 'equal') -> Attack:
    """A sample is from the client whose models have the least loss on it over the rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        temperature: Divisor of the evidence for each client, such as the negative loss (the paper's
            gamma), from 1e-6 to 1e6. A smaller value sharpens the posterior. With equal priors, it
            does not change the order of clients.
        prior: Prior probability of each client. "equal" is the same for every client (the paper's
            1/K); "size" is proportional to the client's number of samples.

    Source: Hu et al. 2024 (SIA), section 5 (future work)."""

def SIAProduct(*, snapshot: Literal['local', 'global', 'received'] = 'local', temperature: float = 1.0, prior: Literal['equal', 'size'] = 'equal') -> Attack:
    """A sample is from the client with the largest product of posterior probabilities over the rounds.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        temperature: Divisor of the evidence for each client, such as the negative loss (the paper's
            gamma), from 1e-6 to 1e6. A smaller value sharpens the posterior. With equal priors, it
            does not change the order of clients.
        prior: Prior probability of each client. "equal" is the same for every client (the paper's
            1/K); "size" is proportional to the client's number of samples.

    Source: Hu et al. 2024 (SIA), section 5 (future work)."""

def SIALikelihood(*, snapshot: Literal['local', 'global', 'received'] = 'local', temperature: float = 1.0, prior: Literal['equal', 'size'] = 'equal') -> Attack:
    """A sample is from the client whose models have a loss furthest below that of the other clients' models.

    Args:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
        temperature: Divisor of the evidence for each client, such as the negative loss (the paper's
            gamma), from 1e-6 to 1e6. A smaller value sharpens the posterior. With equal priors, it
            does not change the order of clients.
        prior: Prior probability of each client. "equal" is the same for every client (the paper's
            1/K); "size" is proportional to the client's number of samples.

    Source: Zhu et al. 2024 (FedMIA-I), as a source posterior."""

def SIACosine(*, temperature: float = 1.0, prior: Literal['equal', 'size'] = 'equal') -> Attack:
    """A sample is from the client whose updates are most similar to its gradient, compared with the other clients' updates.

    Args:
        temperature: Divisor of the evidence for each client, such as the negative loss (the paper's
            gamma), from 1e-6 to 1e6. A smaller value sharpens the posterior. With equal priors, it
            does not change the order of clients.
        prior: Prior probability of each client. "equal" is the same for every client (the paper's
            1/K); "size" is proportional to the client's number of samples.

    Source: Zhu et al. 2024 (FedMIA-II), as a source posterior."""
