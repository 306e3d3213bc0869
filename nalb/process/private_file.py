"""Files that their owner alone may read."""

import os


def open_private(path: str, flags: int) -> int:
    """An opener for `open`: a file that it makes has mode 0600."""
    return os.open(path, flags, 0o600)
