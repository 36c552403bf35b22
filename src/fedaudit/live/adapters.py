"""Names under which PEFT sends the adapters of a network."""

import sys
from collections import Counter

from torch import nn


def sent_names(module: nn.Module) -> dict[str, str]:
    """A network's own name of each trained parameter, by the one that PEFT sends it under.

    ``get_peft_model_state_dict`` leaves out what an adapter is called (``lora_A.weight`` for
    ``lora_A.default.weight``), and where in a larger network the adapted one stands.

    Returns:
        In PEFT's order; nothing for a network without adapters of PEFT's, and no name that two
        trained adapters share.
    """
    parts = ((path, part) for path, part in module.named_modules() if hasattr(part, "peft_config"))
    path, adapted = next(parts, ("", None))
    # Whoever made such a network has imported it.
    if adapted is None or "peft" not in sys.modules:
        return {}
    from peft import get_peft_model_state_dict

    own = {p.data_ptr(): name for name, p in module.named_parameters() if p.requires_grad}
    pairs = [
        (name, own[value.data_ptr()])
        for adapter in adapted.peft_config
        # The default looks for the network on the internet.
        for name, value in get_peft_model_state_dict(
            adapted, adapter_name=adapter, save_embedding_layers=False
        ).items()
        if value.data_ptr() in own
    ]
    shared = Counter(name for name, _ in pairs)
    found = {name: mine for name, mine in pairs if shared[name] == 1}
    return found | {f"{path}.{name}": mine for name, mine in found.items() if path}
