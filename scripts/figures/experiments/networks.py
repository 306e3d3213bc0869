"""Makes network files for experiments: rates drawn at random as in Cai et al., section 4.1, and unequal machines."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

LOW_MBPS, HIGH_MBPS = 20.0, 220.0  # the paper gives the upper end only


def random_network(
    name: str, nodes: int, seed: int, low_mbps: float = LOW_MBPS, high_mbps: float = HIGH_MBPS, every_s: float = 0.0
) -> str:
    """The text of a network file whose nodes' rates are uniform in [low, high] Mbit/s, to a tenth, up and down alike.

    every_s: above 0, netem's own generator draws the rates anew every `every_s` seconds while the network stands. The same
    arguments give the same text.
    """
    lines = [f'name = "{name}"', "[defaults]", "queue_ms = 50"]
    if every_s:
        lines += ["[random]", f"seed = {seed}", f"every_s = {every_s:g}"]
        lines += [f"low_mbps = {low_mbps:g}", f"high_mbps = {high_mbps:g}"]
        return "\n".join(lines + [f'[[nodes]]\nname = "n{i}"' for i in range(nodes)]) + "\n"
    rates = np.round(np.random.default_rng(seed).uniform(low_mbps, high_mbps, nodes), 1)
    lines += [f'[[nodes]]\nname = "n{i}"\nup_mbps = {rate}\ndown_mbps = {rate}' for i, rate in enumerate(rates)]
    return "\n".join(lines) + "\n"


def equal_network(name: str, nodes: int, rate_mbps: float) -> str:
    """The text of a network file whose nodes all have the same rate."""
    lines = [
        f'name = "{name}"',
        "[defaults]",
        "queue_ms = 50",
        f"up_mbps = {rate_mbps:g}",
        f"down_mbps = {rate_mbps:g}",
    ]
    return "\n".join(lines + [f'[[nodes]]\nname = "n{i}"' for i in range(nodes)]) + "\n"


def write_network(folder: Path, name: str, text: str) -> Path:
    """Write the text to FOLDER/NAME.toml and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def uneven_network(name: str, quotas: Sequence[float], start_quota: float | None = None, rate_mbps: float = 500) -> str:
    """The text of a network file with equal links and one machine for each of `quotas`, in cores.

    start_quota: the cores of every machine until training begins, so that small machines do not take minutes to start.
    """
    lines = [equal_network(name, 0, rate_mbps).rstrip("\n")]
    for i, quota in enumerate(quotas):
        lines += [f'[[nodes]]\nname = "n{i}"\ncpu_quota = {start_quota or quota:.3f}']
    if start_quota is not None:
        lines += [f'[[cpu_changes]]\nat_s = 0.1\nnode = "n{i}"\ncpu_quota = {q:.3f}' for i, q in enumerate(quotas)]
    return "\n".join(lines) + "\n"


def changing_machines(name: str, nodes: int, seed: int, quotas: tuple[float, float], every_s: float) -> str:
    """The text of a network file with equal links of 500 Mbit/s, where each machine's cores are drawn anew from the range
    `quotas` every `every_s` seconds."""
    lines = [equal_network(name, nodes, 500), "[cpu_random]", f"seed = {seed}", f"every_s = {every_s:g}"]
    return "\n".join([*lines, f"low_cpu_quota = {quotas[0]:g}", f"high_cpu_quota = {quotas[1]:g}"]) + "\n"
