"""A scheme of one's own: the faster half of the servers sums everything, in equal parts (docs/your-scheme.md).

cd examples
nalb simulate --network wan6-asymmetric --replay mobilenet --schemes average,exact,halves:HALVES
nalb launch --local 4 --scheme halves:HALVES -- python train_fashion_mnist.py
"""

import numpy as np

from nalb import ChosenShares, Scheme, Situation, equal_by_need


def halves(situation: Situation) -> ChosenShares:
    """The bytes of each node, which add up to the model, and the reason, whose words change only with the kind of decision."""
    if (equal := equal_by_need(situation)) is not None:
        return equal  # not every link is measured yet, or the links do not set the pace
    assert situation.estimated is not None  # without estimates `equal_by_need` gives an answer
    servers = np.flatnonzero([node.is_server for node in situation.nodes])
    by_speed = servers[np.argsort(-situation.estimated.limit[servers], kind="stable")]
    fast = by_speed[: (len(servers) + 1) // 2]
    shares = np.zeros(len(situation.nodes))
    shares[fast] = situation.layout.model_bytes / len(fast)
    return shares, "the faster half of the servers sums everything"


HALVES = Scheme("halves", halves, follows_estimates=True)
