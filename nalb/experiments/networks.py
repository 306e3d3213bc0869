"""Seeded network files: nodes whose rates are drawn at random, as in Cai et al., section 4.1."""

from pathlib import Path

import numpy as np

LOW_MBPS, HIGH_MBPS = 20.0, 220.0  # the paper names the upper end only


def random_network(
    name: str, nodes: int, seed: int, low_mbps: float = LOW_MBPS, high_mbps: float = HIGH_MBPS, every_s: float = 0.0
) -> str:
    """A network file's text: each node's rate, up and down alike, uniform in [low, high] Mbit/s to a tenth.

    every_s above 0: drawn anew so often while the network stands, by netem's own generator. Same arguments, same text.
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
    """A network file's text: all nodes alike."""
    lines = [
        f'name = "{name}"',
        "[defaults]",
        "queue_ms = 50",
        f"up_mbps = {rate_mbps:g}",
        f"down_mbps = {rate_mbps:g}",
    ]
    return "\n".join(lines + [f'[[nodes]]\nname = "n{i}"' for i in range(nodes)]) + "\n"


def write_network(folder: Path, name: str, text: str) -> Path:
    """FOLDER/NAME.toml with this text; it is the same text whenever it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path
