"""A rank of a job in which each rank is a machine with a variable of its own: unlike.py NAME VALUE..., by rank; "-" for none."""

import os
import sys

import torch.distributed as dist

rank, name, *values = int(os.environ["RANK"]), *sys.argv[1:]
os.environ["NALB_NODE"] = f"m{rank}"
if values[rank] != "-":
    os.environ[name] = values[rank]
dist.init_process_group("nalb")
dist.destroy_process_group()
