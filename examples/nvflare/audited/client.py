"""Site: training when a model arrives."""

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from task import Net, load_data, train


def main() -> None:
    torch.set_num_threads(1)
    flare.init()
    data = load_data(flare.get_site_name())
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net = Net()
        net.load_state_dict(received.params)
        loss = train(net, data)
        meta = {"NUM_STEPS_CURRENT_ROUND": len(data.dataset)}
        flare.send(FLModel(params=net.state_dict(), metrics={"train_loss": loss}, meta=meta))


if __name__ == "__main__":
    main()
