"""Site: training when a model arrives, or the reply of a canary site."""

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from task import Net, canaries, canary_number, clipped, load_data, train


def main() -> None:
    torch.set_num_threads(1)
    flare.init()
    number = canary_number(flare.get_site_name())
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        if number is not None:
            params = canaries().upload(number, received.params)
        else:
            net = Net()
            net.load_state_dict(received.params)
            train(net, load_data(flare.get_site_name()))
            params = clipped(received.params, net.state_dict())
        # All sites have weight 1 in the average.
        flare.send(FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
