"""`nalb SUBCOMMAND`: parses the command line and runs the subcommand's module.

Each subcommand has a module of its name with configure(parser) and main(args) -> exit code.
"""

import argparse
import errno
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from nalb import __version__
from nalb.errors import InputError, MachineError, NalbError, did_you_mean, is_full
from nalb.process.exhaustion import REMEDIES
from nalb.process.streams import discard_output, open_output

SUBCOMMANDS = {
    "launch": "start a training job: scheduler, servers and workers, here, in namespaces or over ssh",
    "compare": "run a workload under several distribution schemes, side by side",
    "plan": "print the shares that a scheme gives for known capacities",
    "simulate": "say what a synchronisation would take, by a fluid model, without running anything",
    "report": "write the HTML report and figures of a run directory",
    "why": "say what sets the pace of a run, also while it goes on, and what twice the speed of it would save",
    "watch": "show a running job live",
    "metrics": "serve a running job's figures to Prometheus, or write them for TensorBoard",
    "trace": "write a timeline of a run for Chrome or Perfetto, and say what communication stays exposed",
    "calibrate": "measure alpha, the per-slice cost of this platform",
    "doctor": "check this machine before a job",
    "keys": "make a job's keys for encrypted, authenticated transport",
    "net": "build, verify, remove or draw an emulated network",
}
COMPLETION = "--print-completion"
INTERRUPTED_CODE = 130
PATHS = ("FILE", "DIR", "LOGDIR", "NETWORK")  # metavars of what may be paths
NETWORKS = {"bash": "_nalb_networks", "zsh": "_nalb_networks"}  # the shells' functions that complete a network
COMPLETE_NETWORKS = {  # carried networks and files
    "bash": '_nalb_networks() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_nalb_networks() {{ compadd {names}; _files }}",
}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are an InputError of one line, which says how a misspelt word is spelt."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}: `{self.prog} --help` says what there is")

    def _get_value(self, action: argparse.Action, word: str) -> object:
        """Take a leading ~ for the home, as shells do not behind `--flag=`. That of --checkpoints may be of other machines."""
        flag = next(iter(action.option_strings), None)
        if word.startswith("~") and flag and action.metavar in PATHS and flag != "--checkpoints":
            try:
                word = str(Path(word).expanduser())
            except RuntimeError:
                raise InputError(f"{flag} {word}: no home of that name is known here: give the whole path") from None
        return super()._get_value(action, word)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            name = next(iter(action.option_strings), action.metavar or action.dest)
            known = [str(one) for one in action.choices]
            raise InputError(
                f"{name} {value!r} is unknown: {did_you_mean(str(value), known)}choose of {', '.join(known)}"
            )


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str], command: str) -> argparse.Namespace:
    """Parse the words. A flag that nobody knows is told before what is missing, which may be that flag well spelt."""
    flags = [flag for action in _actions(parser) for flag in action.option_strings if flag.startswith("--")]
    try:
        args, left = parser.parse_known_args(words)
    except SystemExit:  # after --help and the like
        sys.stdout.flush()  # at Python's own end an error would be a traceback
        raise
    except InputError:
        own = words[: words.index("--")] if "--" in words else words
        given = [word for word in own if word.startswith("--") and own[0] in SUBCOMMANDS]
        unknown = [word for word in given if not any(flag.startswith(word.split("=")[0]) for flag in flags)]
        _check_known(unknown, flags, command)
        raise
    _check_known(left, flags, command)
    return args


def _check_known(left: Sequence[str], flags: Sequence[str], command: str) -> None:
    """Raise InputError for words that no argument takes."""
    if left:
        meant = did_you_mean(left[0].partition("=")[0], flags)
        raise InputError(f"{left[0]!r} is not understood: {meant}`{command} --help` says what there is")


def build_parser(*chosen: str) -> argparse.ArgumentParser:
    """Build the parser. Only the modules of the chosen subcommands are imported, so that `nalb --help` stays instant."""
    parser = _Parser(
        prog="nalb", description="network-aware load balancing for data-parallel training with PyTorch or MXNet"
    )
    parser.add_argument("--version", action="version", version=f"nalb {__version__}")
    shells = ("bash", "zsh")
    parser.add_argument(
        COMPLETION, choices=shells, action=_PrintCompletion, help="print what completes nalb's words there"
    )
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, help_text in SUBCOMMANDS.items():
        sub = subparsers.add_parser(name, help=help_text, description=help_text)
        if name in chosen:
            module = importlib.import_module(f"nalb.cli.{name}")
            module.configure(sub)
            sub.set_defaults(main=module.main)
    return parser


class _PrintCompletion(argparse.Action):
    """Prints a completion script for the named shell and exits. An argument's metavar tells whether it is a file or a directory."""

    def __call__(self, parser: argparse.ArgumentParser, _args: object, shell: object, _option: object = None) -> None:
        import shtab  # the imports take longer than all of `nalb --help`

        from netem.network_file import carried_networks

        for action in _actions(parser):
            complete = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "NETWORK": NETWORKS}.get(str(action.metavar))
            if complete:
                action.complete = complete  # type: ignore[attr-defined]  # shtab reads this attribute
        preamble = COMPLETE_NETWORKS[str(shell)].format(names=" ".join(carried_networks()))
        print(shtab.complete(parser, str(shell), preamble=preamble))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)


def run(argv: Sequence[str] | None = None) -> int:
    """Parse the words and run the subcommand; return the exit code.

    A NalbError becomes one line on stderr and its exit code, and so does a lack of memory or room. A reader of stdout that went
    away, such as `head`, is no error.
    """
    open_output()
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = [word for word in words if not word.startswith("-")][:1]
    chosen = [word for word in chosen if word in SUBCOMMANDS]
    command = " ".join(["nalb", *chosen])
    try:
        is_completion = words[:1] and words[0].partition("=")[0] == COMPLETION
        _spare_matplotlib_a_home()
        with _interrupts_end_at_once(command):
            parser = build_parser(*(SUBCOMMANDS if is_completion else chosen))
        args = _parsed(parser, words, command)
        args.words = words
        code = int(args.main(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        discard_output()
        return 0
    except NalbError as error:
        _tell(f"{command}: {error}")
        return error.exit_code
    except MemoryError:
        _tell(f"{command}: no memory is left: free memory, or raise ulimit -v")
        return MachineError.exit_code
    except Exception as error:
        number = getattr(error, "errno", None)  # which ZMQError has too, though it is no OSError
        if number in (errno.EMFILE, errno.ENFILE):
            _tell(f"{command}: {os.strerror(number)}: {REMEDIES[number]}")
            return MachineError.exit_code
        if not isinstance(error, OSError) or not is_full(error):
            raise
        if error.filename is None:
            discard_output()
        _tell(f"{command}: {error.filename or 'standard output'}: {error.strerror}: make room there")
        return MachineError.exit_code
    except KeyboardInterrupt:
        _tell(f"{command}: interrupted")
        return INTERRUPTED_CODE


def _spare_matplotlib_a_home() -> None:
    """Prepare for imports of matplotlib, which fail for a user without a home, and warn where it cannot be written.

    Where the folder for its caches cannot be made, matplotlib makes one of its own, and removes it at the end.
    """
    if os.path.expanduser("~") == "~":
        os.environ.setdefault("MPLCONFIGDIR", os.devnull)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


@contextmanager
def _interrupts_end_at_once(command: str) -> Iterator[None]:
    """A context for imports, in which Ctrl-C ends the process: those in C turn a KeyboardInterrupt into an ImportError."""

    def end(number: int, frame: object) -> None:
        del number, frame
        _tell(f"{command}: interrupted")
        os._exit(INTERRUPTED_CODE)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # an interrupt that is ignored, as under nohup, stays so
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _tell(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # nobody reads it, or the disk is full: the exit code still tells
        discard_output(sys.stderr)


if __name__ == "__main__":
    sys.exit(run())
