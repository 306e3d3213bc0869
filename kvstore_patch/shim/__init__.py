"""Python's access to the shim: the library's path, the environment that preloads it, and the samples and counters that it notes.

The library works only where it is preloaded. `preload_environment` gives the variables that a process needs before it starts.
`Shim.loaded` finds the library in the present process, or raises an error. shim.h says what each field means.
"""

import ctypes
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nalb.errors import InputError, MachineError
from nalb.process.built_library import built_library

ABI = 4  # NALB_SHIM_ABI of shim.h
TRANSPORTS = ("mxnet", "pyzmq")  # the libzmq inside libmxnet.so, or pyzmq's newer one
BATCH = 4096  # samples per call into the library
COUNTERS = (  # NALB_COUNTERS of shim.h, in its order
    "forecasts_sent",
    "forecasts_swallowed",
    "forecast_failures",
    "messages_sent",
    "messages_received",
    "bytes_sent",
    "bytes_received",
    "hostile_frames",
    "foreign_messages",
    "untracked_sockets",
    "handshakes_allowed",
    "handshakes_refused",
)


class Sample(NamedTuple):
    """One received message that a forecast had announced, with times on this process's monotonic clock."""

    peer: int  # ps-lite id of the sender
    size_bytes: int  # of all frames
    start_ns: int  # when its forecast arrived
    end_ns: int  # when it arrived


class _Sample(ctypes.Structure):
    _fields_ = (
        ("peer", ctypes.c_int32),
        ("size_bytes", ctypes.c_uint64),
        ("start_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
    )


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in COUNTERS)


def library_path() -> Path:
    """The shim's shared library. Raises MachineError if it was not built."""
    return built_library(Path(__file__).parent, "_shim", "the shim")


def pyzmq_library_path() -> Path:
    """The libzmq that pyzmq's wheel carries. Raises MachineError where pyzmq brings none."""
    spec = importlib.util.find_spec("zmq")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        for found in sorted(package.with_name("pyzmq.libs").glob("libzmq-*.so*")):
            return found
    raise MachineError("transport pyzmq needs the libzmq inside pyzmq's wheel: `pip install --only-binary pyzmq pyzmq`")


def preload_environment(environ: Mapping[str, str], transport: str = "mxnet", forecasts: bool = True) -> dict[str, str]:
    """The variables with which a process runs on the shim: LD_PRELOAD, which keeps other entries of `environ`, and NALB_SHIM_*.

    An environment that has the shim already gives the same variables again. Raises InputError for an unknown transport, and
    MachineError if a library is missing or its path has characters that LD_PRELOAD cannot hold.
    """
    if transport not in TRANSPORTS:
        raise InputError(f"transport {transport!r}: choose one of {', '.join(TRANSPORTS)}")
    libraries = [library_path()] + ([pyzmq_library_path()] if transport == "pyzmq" else [])
    for library in libraries:
        if any(separator in str(library) for separator in " :"):
            raise MachineError(f"LD_PRELOAD cannot name {library}: install into a path without spaces and colons")
    ours = [str(library) for library in libraries]
    kept = [entry for entry in environ.get("LD_PRELOAD", "").replace(":", " ").split() if not _is_ours(entry)]
    return {
        "LD_PRELOAD": " ".join(ours + kept),
        "NALB_SHIM_TRANSPORT": transport,
        "NALB_SHIM_FORECASTS": "1" if forecasts else "0",
    }


def _is_ours(entry: str) -> bool:
    """Whether an earlier `preload_environment` made this entry of LD_PRELOAD, perhaps for the other transport."""
    return Path(entry).name.startswith("_shim.") or "pyzmq.libs" in Path(entry).parts


def _check_transport(shared_libzmq: bool) -> None:
    """Raise MachineError unless ps-lite will run on the libzmq that NALB_SHIM_TRANSPORT asks for."""
    wanted = os.environ.get("NALB_SHIM_TRANSPORT", "mxnet")
    if wanted == "pyzmq" and not shared_libzmq:
        raise MachineError("transport pyzmq, but its libzmq is not preloaded: start the process by `nalb launch`")
    if wanted == "mxnet" and shared_libzmq:
        raise MachineError("transport mxnet, but a preloaded libzmq takes its place: remove it from LD_PRELOAD")


def _why_not_preloaded(environ: Mapping[str, str]) -> str:
    """Why the shim is not preloaded, and what to do.

    LD_PRELOAD is set together with NALB_SHIM_TRANSPORT: where only the latter is there, something removed LD_PRELOAD on the way.
    """
    if "NALB_SHIM_TRANSPORT" not in environ:
        return "start it by `nalb launch`, it sets LD_PRELOAD"
    now = f"is {environ['LD_PRELOAD']!r} now" if environ.get("LD_PRELOAD") else "is gone"
    return f"LD_PRELOAD, which named it, {now}: let the command's wrapper pass LD_PRELOAD on, or put {library_path()} first in it"


class Shim:
    """The shim that this process was started with."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._batch = (_Sample * BATCH)()
        library.nalb_shim_drops.restype = library.nalb_shim_first_sent_ns.restype = ctypes.c_uint64
        library.nalb_shim_transport.restype = ctypes.c_char_p

    @classmethod
    def loaded(cls) -> "Shim":
        """The preloaded shim.

        Raises MachineError if there is none, if another library catches its calls first, if its version differs, or if the
        transport is not the one asked for.
        """
        library = ctypes.CDLL(None)
        if not hasattr(library, "nalb_shim_abi"):
            raise MachineError(f"the shim is not preloaded in this process: {_why_not_preloaded(os.environ)}")
        if (abi := library.nalb_shim_abi()) != ABI:
            raise MachineError(f"the preloaded shim has ABI {abi}, this package needs {ABI}: reinstall nalb")
        if not library.nalb_shim_in_front():
            raise MachineError("another library catches zmq_* calls before the shim: put the shim first in LD_PRELOAD")
        # the shim does not define zmq_msg_init: the name is found only if a libzmq is in the global scope
        _check_transport(hasattr(library, "zmq_msg_init"))
        return cls(library)

    def drain(self) -> list[Sample]:
        """The samples since the last drain, oldest first."""
        samples: list[Sample] = []
        while True:
            count = self._library.nalb_shim_drain(self._batch, BATCH)
            samples += [Sample(s.peer, s.size_bytes, s.start_ns, s.end_ns) for s in self._batch[:count]]
            if count < BATCH:
                return samples

    def mark(self) -> None:
        """Forget the first data message's time: `first_sent_ns` is then the time of the next one."""
        self._library.nalb_shim_mark()

    @property
    def first_sent_ns(self) -> int:
        """When the first data message since `mark` was handed to libzmq, on the monotonic clock; 0: none was."""
        return int(self._library.nalb_shim_first_sent_ns())

    @property
    def drops(self) -> int:
        """How many samples were lost so far because nobody drained them in time."""
        return int(self._library.nalb_shim_drops())

    @property
    def self_id(self) -> int:
        """This process's ps-lite id; -1 before it has one."""
        return int(self._library.nalb_shim_self_id())

    @property
    def transport(self) -> str:
        """The file of the libzmq that ps-lite runs on; empty before ps-lite's first socket."""
        return str(self._library.nalb_shim_transport().decode())

    def set_forecasts(self, on: bool) -> None:
        """Announce data messages from now on, so that receivers can time them, or stop doing so."""
        self._library.nalb_shim_set_forecasts(int(on))

    def counters(self) -> dict[str, int]:
        """The counters' totals since the process began, by name."""
        out = _Counters()
        self._library.nalb_shim_counters(ctypes.byref(out))
        return {name: getattr(out, name) for name in COUNTERS}
