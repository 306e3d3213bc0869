"""The parser of all commands, for the reference. `nalb` itself configures only the command that is run, to start at once."""

import argparse
import importlib

from nalb.cli.main import SUBCOMMANDS


def parser() -> argparse.ArgumentParser:
    """Every command with all its arguments."""
    whole = argparse.ArgumentParser(prog="nalb")
    subparsers = whole.add_subparsers()
    for name, help_text in SUBCOMMANDS.items():
        importlib.import_module(f"nalb.cli.{name}").configure(subparsers.add_parser(name, description=help_text))
    return whole
