"""Site: training when adapters and a head arrive."""

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from task import Net, load_data

STEPS = 40


def main() -> None:
    torch.set_num_threads(1)
    flare.init()
    x, y = load_data(flare.get_site_name())
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net = Net()
        net.load_state_dict(received.params)
        optimizer = torch.optim.Adam((p for p in net.parameters() if p.requires_grad), lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        meta = {"NUM_STEPS_CURRENT_ROUND": len(x)}
        flare.send(FLModel(params=net.state_dict(), meta=meta))


if __name__ == "__main__":
    main()
