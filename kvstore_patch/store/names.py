"""The names of KVStores. MXNet makes 'local' of any name that it does not know, and a worker would train alone without a word."""

import difflib
from collections.abc import Collection, Mapping

from nalb.errors import StoreError

TYPE = "dist_sync_nalb"  # scripts, Module among them, ask the type for 'dist' and '_sync': data are split, gradients summed
NAMES = ("nalb", TYPE)  # what scripts create the store by
MXNETS_OWN = frozenset(  # kvstore.cc and comm.h, MXNet 1.9.1
    {"local", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device", "device", "nccl"}
    | {
        f"dist{rest}"
        for rest in ("", "_sync", "_async", "_sync_device", "_device_sync", "_async_device", "_device_async")
    }
)
ALIKE = 0.7  # of difflib's ratio: a slip of the pen, 'nabl' as 'nalbb'


def is_in_job(environ: Mapping[str, str]) -> bool:
    """Whether this process is a worker of a job of nalb's, by whatever launcher; one with keys talks to nobody in plain text."""
    return environ.get("DMLC_ROLE") == "worker" and not {"NALB_COORDINATOR", "NALB_KEYS"}.isdisjoint(environ)


def check(name: str, registered: Collection[str], environ: Mapping[str, str]) -> None:
    """StoreError for a name of which MXNet would make a store that trains alone, or that this job's servers do not serve."""
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
    """Why there is no store of ours in this process, which is in no job."""
    wanted = {"DMLC_ROLE": "DMLC_ROLE=worker", "NALB_COORDINATOR": "NALB_COORDINATOR"}
    missing = [text for name, text in wanted.items() if name not in environ]
    return StoreError(
        f"kvstore 'nalb' needs a job, and this process has no {' and no '.join(missing)}: start it by `nalb launch --local 2 -- "
        "python train.py`, or with NALB_ALONE=1 to train alone on MXNet's 'local'"
    )
