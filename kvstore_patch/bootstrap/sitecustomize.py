"""Imports after_mxnet.py in an interpreter without nalb.pth. `nalb launch` puts this folder first on a worker's PYTHONPATH.

The interpreter imports only the first `sitecustomize`, so this one also runs the next one on the path.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _run(spec: importlib.machinery.ModuleSpec | None) -> None:
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if (
    "kvstore_patch.after_mxnet" not in sys.modules
):  # loaded by its path: this interpreter may not find nalb; the script's import of mxnet then fails with that reason
    after_mxnet = os.path.join(os.path.dirname(HERE), "after_mxnet.py")
    _run(importlib.util.spec_from_file_location("after_mxnet", after_mxnet))
others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
_run(importlib.machinery.PathFinder.find_spec("sitecustomize", others))
