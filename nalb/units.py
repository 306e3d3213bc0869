"""Conversions between units. Names carry units everywhere else: size_bytes, rate_bps (bits per second), elapsed_s."""

BITS_PER_BYTE = 8
GOODPUT_PART = 1448 / 1514  # TCP payload of a full Ethernet frame (MTU 1500, timestamps), as tc counts it
MBPS = 1_000_000  # bits per second in one Mbit/s


def mbps_to_bytes_per_s(rate_mbps: float) -> float:
    """Mbit/s (10^6 bits) to bytes per second."""
    return rate_mbps * MBPS / BITS_PER_BYTE


def bytes_per_s_to_mbps(rate_bytes_per_s: float) -> float:
    """Bytes per second to Mbit/s (10^6 bits)."""
    return rate_bytes_per_s * BITS_PER_BYTE / MBPS
