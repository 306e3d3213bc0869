"""`python -m kvstore_patch.roles.stock`: the program that a node runs as DMLC_ROLE=server or scheduler where MXNet runs alone.

MXNet serves while it is imported. Without the shim it would serve in plain text, so a process that has keys looks for the shim
first. The program loads nothing else of nalb: these jobs measure MXNet alone.
"""

import os

from kvstore_patch.shim import Shim
from nalb.errors import MachineError

if __name__ == "__main__":
    if "NALB_KEYS" in os.environ:
        try:
            Shim.loaded()
        except MachineError as error:
            from nalb.failures import Cause, Failure
            from nalb.process.last_words import die

            die(Failure(cause=Cause.PROCESS, detail=str(error)), error.exit_code)
    import mxnet  # noqa: F401 - it serves until the job ends
