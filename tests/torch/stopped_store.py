"""Every rank's script: the host of torch's store stops itself as it joins the job."""

import os
import signal

import torch.distributed as dist

from nalb.torch import job

job.TURN_S, job.ANSWER_S = 2.0, 2.0
if os.environ["RANK"] == "0":
    job.machines_of = lambda _: os.kill(os.getpid(), signal.SIGSTOP)
dist.init_process_group("nalb")
