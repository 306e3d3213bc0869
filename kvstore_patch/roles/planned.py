"""`python -m kvstore_patch.roles.planned`: the program that a node runs as DMLC_ROLE=server or scheduler.

MXNet's own entry starts its loop while mxnet is imported, and unpickles optimizers that come from the network. This program runs
the loop from MXNet's library, reports what its shim saw, and refuses pickles. The scheduler's process also runs the coordinator.
"""

import ctypes
import importlib.util
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kvstore_patch.keys.plane import PS_LITE
from kvstore_patch.shim import Shim
from kvstore_patch.store.ps_lite import PsLite, check_encryption, server_rank
from nalb.batching.schemes import PREDICTORS
from nalb.batching.speed import Predictor, require_library
from nalb.errors import InputError, MachineError, NalbError
from nalb.extensions import own_of
from nalb.extras import require_mxnet
from nalb.failures import Cause, Failure, cause_of
from nalb.process.exhaustion import raise_file_limit
from nalb.process.last_words import die
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.settings import Settings, from_environment
from nalb.transport.client import Client
from nalb.transport.reachability import Reachability, reach_kept

CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def serve(settings: Settings) -> None:
    """Run ps-lite's loop of the role until the workers are done. Raises MachineError where ps-lite fails, as at a port in use.

    MXNet's library is enough: its Python package takes 1.4 s of a core and 115 MB more, in each server.
    """
    # A server answers once so many workers have pushed; the scheduler has the number of all workers.
    os.environ["DMLC_NUM_WORKER"] = str(settings.pushers)
    package = importlib.util.find_spec("mxnet")
    assert package is not None, "require_mxnet"
    assert package.origin is not None
    library = ctypes.CDLL(str(Path(package.origin).with_name("libmxnet.so")))
    library.MXGetLastError.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()

    def check(code: int) -> None:
        if code:
            lines = library.MXGetLastError().decode("utf-8", "replace").strip().splitlines()
            why = next((line for line in lines if "Check failed" in line), lines[-1])
            place = f"{os.environ['DMLC_PS_ROOT_URI']}:{os.environ['DMLC_PS_ROOT_PORT']}"
            raise MachineError(
                f"ps-lite fails ({why}): if it cannot bind, {place} is in use, so choose another root port"
            )

    def control(command: int, body: bytes, _: object) -> None:
        del body
        why = f"refused command {command} of MXNet's own store: optimizers are pickles and run on workers; write 'nalb'"
        die(Failure(cause=Cause.PROTOCOL, detail=why, role=settings.process, node=settings.node))

    controller = CONTROLLER(control)
    check(library.MXKVStoreCreate(b"dist_sync", ctypes.byref(handle)))
    check(library.MXKVStoreRunServer(handle, controller, None))
    check(library.MXNDArrayWaitAll())
    check(library.MXKVStoreFree(handle))


def run_server(settings: Settings) -> None:
    """Run a parameter server that reports to the coordinator what it receives."""
    shim = Shim.loaded()
    plane = PsLite(shim)
    ends: queue.LifoQueue[Callable[[], None]] = queue.LifoQueue()  # close what the thread opened, the last first

    def join() -> None:
        with reach_kept(settings):
            while shim.self_id < 0:  # ps-lite gives the id once all processes are there
                time.sleep(0.05)
            hello = wire.Hello(wire.VERSION, settings.process, settings.node, server_rank(shim.self_id), os.getpid())
            client = Client.of(settings, hello, plane.timings)
            client.on(m.Measure, lambda message: shim.set_forecasts(message.on))
            ends.put(lambda: client.close(wire.Goodbye()))
            client.wait_for(wire.Welcome)
        ends.put(Reachability(settings, client.fail, lambda ways: client.note(ways=ways)).close)

    threading.Thread(target=join, name="nalb-join", daemon=True).start()
    serve(settings)
    while not ends.empty():
        ends.get()()


def _predictor(settings: Settings) -> tuple[Callable[[int], Predictor] | None, Callable[[], None]]:
    """(maker of a worker's speed predictor, action for when the job has ended well). The maker is None where sizes need no speeds.

    Only a predictor that is a network imports MXNet.
    """
    if not settings.predicts_speed:
        return None, lambda: None
    require_library(settings.predictor)
    if settings.predictor in PREDICTORS:
        return PREDICTORS[settings.predictor], lambda: None
    os.environ["DMLC_ROLE"] = "worker"  # keeps the import from starting MXNet's own loop
    from kvstore_patch.roles.speed_networks import NETWORKS, ModelFolder

    os.environ["DMLC_ROLE"] = settings.role
    if settings.predictor_models is None:
        return NETWORKS[settings.predictor], lambda: None
    models = ModelFolder(Path(settings.predictor_models), settings.predictor)
    return models.predictor, models.save


def main() -> int:
    """Run this process's role."""
    raise_file_limit()
    try:
        settings = from_environment(os.environ, socket.gethostname())
        require_mxnet("a server or scheduler")
        if settings.role == "worker":
            raise InputError(
                "kvstore_patch.roles.planned runs servers and the scheduler; workers run the training script"
            )
        if settings.role == "server":
            with reach_kept(settings):
                check_encryption(settings)
            run_server(settings)
        else:
            check_encryption(settings)
            from nalb.transport.server import CoordinatorThread

            predictor, end = _predictor(settings)
            schemes, estimators = own_of(settings.scheme, settings.own_schemes, settings.estimator)
            with CoordinatorThread(settings, predictor, schemes, estimators, PS_LITE):
                serve(settings)
            try:
                end()
            except OSError as error:  # the training is complete
                print(f"nalb: models of speeds are not stored ({error}): make room there", file=sys.stderr, flush=True)
    except NalbError as error:
        die(Failure(cause=cause_of(error, Cause.PROCESS), detail=str(error)), error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
