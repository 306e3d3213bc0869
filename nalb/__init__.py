"""Network-aware load balancing for MXNet parameter-server training."""

__version__ = "0.1.0"  # pyproject.toml takes it from here
