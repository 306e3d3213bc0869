"""Found first on PYTHONPATH under `nalb launch`: registers the store once the user's script has imported MXNet.

The interpreter imports one `sitecustomize`; another one further down the path is run too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _AfterMxnet(importlib.abc.MetaPathFinder):
    """Lets the import of mxnet go its way and installs the patch when it is complete."""

    _is_asking = False  # the other finders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "mxnet" or self._is_asking:
            return None
        self._is_asking = True  # and stay: a script may look for mxnet before it imports it
        try:
            spec = importlib.util.find_spec("mxnet")
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            from kvstore_patch.gluon.patch import install

            install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


def _run_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("DMLC_ROLE") == "worker":
    sys.meta_path.insert(0, _AfterMxnet())
_run_next()
