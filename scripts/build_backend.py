"""The build backend: setuptools' own, and nalb.pth at the root of each wheel, which setuptools has no place for.

A wheel's root becomes site-packages, whatever folder that is, and RECORD says what to uninstall. `pip install -e` makes one too.
"""

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks of PEP 517 and 660

NAME = "nalb.pth"
# Python runs it at each start. It says nothing where nalb is half removed.
LINE = b'import sys; exec("try:\\n import kvstore_patch.after_mxnet\\nexcept ImportError:\\n pass")\n'


def build_wheel(wheel_directory: str, *args: Any, **options: Any) -> str:
    """A wheel, with nalb.pth; returns its name."""
    return _with_pth(wheel_directory, build_meta.build_wheel(wheel_directory, *args, **options))


def build_editable(wheel_directory: str, *args: Any, **options: Any) -> str:
    """A wheel whose packages stay where they are, with nalb.pth; returns its name."""
    return _with_pth(wheel_directory, build_meta.build_editable(wheel_directory, *args, **options))


def _with_pth(folder: str, name: str) -> str:
    wheel, made = Path(folder, name), Path(folder, f"{name}.new")
    digest = base64.urlsafe_b64encode(hashlib.sha256(LINE).digest()).rstrip(b"=")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                pth = zipfile.ZipInfo(NAME, item.date_time)
                pth.external_attr = 0o100644 << 16
                new.writestr(pth, LINE)
                content += b"%s,sha256=%s,%d\n" % (NAME.encode(), digest, len(LINE))
            new.writestr(item, content)
    made.replace(wheel)
    return name
