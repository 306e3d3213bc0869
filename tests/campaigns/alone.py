"""`python -m tests.campaigns.alone MASTER PORT NODE[@NAMESPACE]... -- COMMAND`: a rank on each node, which nobody supervises.

As where a cluster's scheduler starts them: a rank that fails ends no other, and nothing of nalb's is told but what torchrun tells.
Rank 0's agent runs the coordinator. Lines of output get the node before them. Ends once all ranks have, with 0 where all did.
"""

import os
import subprocess
import sys
import threading

from tests.campaigns.resets import inside


def main() -> int:
    """Start the ranks, pass their lines on."""
    cut = sys.argv.index("--")
    master, port, *places = sys.argv[1:cut]
    told = {"MASTER_ADDR": master, "MASTER_PORT": port, "WORLD_SIZE": str(len(places)), "PYTHONUNBUFFERED": "1"}
    ranks, readers, lock = [], [], threading.Lock()

    def read(node: str, rank: "subprocess.Popen[str]") -> None:
        assert rank.stdout is not None
        for line in rank.stdout:
            with lock:
                sys.stdout.write(f"[{node}] {line}")
                sys.stdout.flush()

    for number, place in enumerate(places):
        node, _, namespace = place.partition("@")
        own = {"RANK": str(number), "LOCAL_RANK": "0", "NALB_NODE": node}
        rank = subprocess.Popen(
            inside(namespace or None, sys.argv[cut + 1 :]),
            env=os.environ | told | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        ranks.append(rank)
        readers.append(threading.Thread(target=read, args=(node, rank)))
        readers[-1].start()
    codes = [rank.wait() for rank in ranks]
    for reader in readers:
        reader.join()
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
