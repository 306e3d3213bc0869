"""Conversions between units. Names carry units everywhere else: size_bytes, rate_bps (bits per second), elapsed_s."""

BITS_PER_BYTE = 8
SEGMENT_BYTES = 1448  # TCP payload of a full packet: MTU 1500, less 20 of IPv4 and 32 of TCP with timestamps
HEADER_BYTES = 66  # of a full packet, as tc counts: those 52, and 14 of Ethernet. An acknowledgement is headers alone
GOODPUT_PART = SEGMENT_BYTES / (SEGMENT_BYTES + HEADER_BYTES)  # payload's part of full packets
MBPS = 1_000_000  # bits per second in one Mbit/s


def mbps_to_bytes_per_s(rate_mbps: float) -> float:
    """Convert Mbit/s (10^6 bits) to bytes per second."""
    return rate_mbps * MBPS / BITS_PER_BYTE


def bytes_per_s_to_mbps(rate_bytes_per_s: float) -> float:
    """Convert bytes per second to Mbit/s (10^6 bits)."""
    return rate_bytes_per_s * BITS_PER_BYTE / MBPS


def duration(value_s: float) -> str:
    """A time that is left, as people say it: 45 s, 12 min, 3 h 5 min."""
    if value_s < 100:
        return f"{value_s:.0f} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
