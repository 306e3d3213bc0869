"""Registers the store's names with MXNet as soon as a script has imported MXNet. nalb.pth imports this module as Python starts.

Every interpreter that has nalb runs this module, so it imports nothing slow: no package of nalb, MXNet or importlib.
`bootstrap/sitecustomize.py` imports it too, for an interpreter that finds nalb on PYTHONPATH alone.
"""

import os
import sys

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING: importing `typing` takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import NoReturn


class AfterMxnet:
    """A finder that registers the stores' names when the import of mxnet is complete, and changes nothing else."""

    _is_asking = False  # whether it asks the other finders

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of mxnet, whose loader also registers the names; None for any other module."""
        if fullname != "mxnet" or self._is_asking:
            return None
        import importlib.util

        self._is_asking = True  # this finder stays installed: a script may look for mxnet before it imports it
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

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # on this one loader only
        return spec


def note_exits() -> None:
    """Let each call of sys.exit be noted, also that of a script that has imported the function before it makes a store."""
    exit_now = sys.exit

    def exit(status: "str | int | None" = None) -> "NoReturn":
        script_end = sys.modules.get("kvstore_patch.store.script_end")
        if script_end is not None:
            script_end.note(status)
        exit_now(status)

    sys.exit = exit


if os.environ.get("DMLC_ROLE") == "worker":
    note_exits()
if (
    os.environ.get("DMLC_ROLE", "worker") == "worker"
):  # servers and schedulers create no stores; some set DMLC_ROLE to worker later
    sys.meta_path.insert(0, AfterMxnet())
