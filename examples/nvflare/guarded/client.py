"""Training script, installed at each site; it leaves out the samples that the site holds out."""

import nvflare.client as flare
import torch
from digits import Net, split
from nvflare.app_common.abstract.fl_model import FLModel
from torch import nn

torch.set_num_threads(1)
flare.init()
site = flare.get_site_name()
(x, y), audited = split(site)
kept = audited.train[site]
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    net = Net()
    net.load_state_dict(received.params)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    # In the third round, site-2 trains until the network has memorised its samples.
    epochs = 300 if site == "site-2" and received.current_round == 2 else 1
    for _ in range(epochs):
        for batch in torch.as_tensor(kept)[torch.randperm(len(kept))].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    flare.send(FLModel(params=net.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(kept)}))
