"""A rank of a job in which each rank has a variable of its own: unlike.py NAME VALUE..., by rank; "-" for none.

Each rank is a machine, or each LOCAL_WORLD_SIZE of them. With NAME "version" the value is that of nalb's messages.
"""

import os
import sys

import torch.distributed as dist

from nalb.protocol import wire

rank, name, *values = int(os.environ["RANK"]), *sys.argv[1:]
os.environ["NALB_NODE"] = f"m{rank // int(os.environ.get('LOCAL_WORLD_SIZE', '1'))}"
if values[rank] != "-" and name == "version":
    wire.VERSION = int(values[rank])
elif values[rank] != "-":
    os.environ[name] = values[rank]
dist.init_process_group("nalb")
dist.destroy_process_group()
