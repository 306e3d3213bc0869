"""Checks the names of KVStores. MXNet makes a 'local' store of any unknown name, with which a worker would silently train alone."""

import difflib
from collections.abc import Collection, Mapping

from nalb.errors import StoreError

TYPE = "dist_sync_nalb"  # scripts and Module look for 'dist' and '_sync' in a store's type
NAMES = ("nalb", TYPE)  # names by which scripts create the store
MXNETS_OWN = frozenset(  # kvstore.cc and comm.h, MXNet 1.9.1
    {"local", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device", "device", "nccl"}
    | {
        f"dist{rest}"
        for rest in ("", "_sync", "_async", "_sync_device", "_device_sync", "_async_device", "_device_async")
    }
)
ALIKE = 0.7  # difflib's ratio from which a name counts as a misspelt NAMES, such as 'nabl' or 'nalbb'

NO_PUSH = (  # with NALB_ALONE=1 MXNet's own store says so too
    "kvstore 'nalb' has no separate push and pull (sparse gradients need them): call pushpull(key, value, out) with dense arrays "
    "(no sparse_grad, grad_stype='default')"
)


def is_in_job(environ: Mapping[str, str]) -> bool:
    """Whether this process is a worker of one of nalb's jobs, whoever launched it. A process with keys counts, so that it never
    talks in plain text."""
    return environ.get("DMLC_ROLE") == "worker" and not {"NALB_COORDINATOR", "NALB_KEYS"}.isdisjoint(environ)


def check(name: str, registered: Collection[str], environ: Mapping[str, str]) -> None:
    """Raise StoreError for a name of which MXNet would make a store that trains alone or that this job's servers do not serve."""
    if name in registered:
        return
    is_here = is_in_job(environ)
    if name in MXNETS_OWN:
        if is_here and "dist" in name and environ.get("NALB_STOCK") != "1":
            raise StoreError(
                f"the script creates MXNet's own kvstore {name!r}, which this job's servers do not serve: "
                "write 'nalb', or launch with --scheme stock"
            )
    elif is_here or NAMES[0] in name or difflib.get_close_matches(name, NAMES, cutoff=ALIKE):
        raise StoreError(
            f"kvstore {name!r} is neither nalb's nor MXNet's, which would make another store of it: write 'nalb'"
        )


def refusal(environ: Mapping[str, str]) -> StoreError:
    """The error for a process that creates nalb's store outside a job."""
    wanted = {"DMLC_ROLE": "DMLC_ROLE=worker", "NALB_COORDINATOR": "NALB_COORDINATOR"}
    missing = [text for name, text in wanted.items() if name not in environ]
    return StoreError(
        f"kvstore 'nalb' needs a job, and this process has no {' and no '.join(missing)}: start it by `nalb launch --local 2 -- "
        "python train.py`, or with NALB_ALONE=1 to train alone on MXNet's 'local'"
    )
