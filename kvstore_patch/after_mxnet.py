"""Imported by nalb.pth as Python starts: once a script has imported MXNet, MXNet knows the store's names.

Every interpreter that has nalb pays for this, so it loads nothing: no package of nalb's, of MXNet's or of importlib's.
`bootstrap/sitecustomize.py` imports it too, for an interpreter that finds nalb on PYTHONPATH alone.
"""

import os
import sys

TYPE_CHECKING = False  # the one of `typing`, which takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class AfterMxnet:
    """A finder that lets the import of mxnet go its way and names the stores when it is complete."""

    _is_asking = False  # the other finders

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The loader of mxnet, with what follows; None for any other module."""
        if fullname != "mxnet" or self._is_asking:
            return None
        import importlib.util

        self._is_asking = True  # and stay: a script may look for mxnet before it imports it
        try:
            spec = importlib.util.find_spec("mxnet")
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            run(module)
            from kvstore_patch.gluon.creation import install

            install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


if (
    os.environ.get("DMLC_ROLE", "worker") == "worker"
):  # servers and schedulers create no stores; some call themselves worker later
    sys.meta_path.insert(0, AfterMxnet())
