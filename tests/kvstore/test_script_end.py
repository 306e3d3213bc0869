"""How a training script ends, in plain processes: with which word and code, and with nothing lost that it has written."""

import os
import subprocess
import sys

import pytest

from nalb.errors import InputError, PeerError
from nalb.failures import NOT_LEFT, Cause
from nalb.process.guardian import VARIABLE
from nalb.process.last_words import failure_in

BEGIN = """
import atexit, os, sys
from kvstore_patch.store import script_end
from nalb.failures import render
atexit.register(os.write, 1, b", then the rest")
script_end.at_exit("n1", lambda: os.write(1, b"closed"), lambda failure: os.write(1, render(failure).encode()))
"""


@pytest.mark.parametrize(
    ("end", "says", "code"),
    [
        ("", "closed, then the rest", 0),
        ("raise ValueError('no number\\nat all')", "worker n1 failed: ValueError: no number", 1),
        ("script_end.at_exit('n2', lambda: 1 / 0, lambda failure: os.write(1, render(failure).encode()))",
         "worker n2 failed: ZeroDivisionError: division by zero", 1),
        ("raise ValueError('Traceback (most recent call last):\\n  File \"x.cc\", line 1\\nValueError: no number\\nat all')",
         "worker n1 failed: ValueError: no number", 1),
        ("sys.excepthook = lambda *_: None; raise ValueError('no number')", "worker n1 failed: ValueError: no number", 1),
        ("os._exit(0)", f"worker n1 {NOT_LEFT}", PeerError.exit_code),
        ("os._exit(3)", "", 3),
        ("atexit.register(lambda: os._exit(0))", f"worker n1 {NOT_LEFT}", PeerError.exit_code),
        ("if os.fork(): os.wait()\nelse: os._exit(0)", "closed, then the rest", 0),
        ("sys.exit(3)", "worker n1 failed: it exited with 3", 3),
        ("sys.stdout = None; sys.stderr.close(); exit(3)", "worker n1 failed: it exited with 3", 3),
        ("""
try: sys.exit(3)
except SystemExit: script_end.goes_on()""", "closed, then the rest", 0),
        ("""
import threading
try: sys.exit(3)
finally:
    other = threading.Thread(target=script_end.goes_on)
    other.start()
    other.join()""", "worker n1 failed: it exited with 3", 3),
        ("""
child = os.fork()
if child: sys.exit(os.waitpid(child, 0)[1])""", ", then the restclosed, then the rest", 0),
    ],
)  # fmt: skip
def test_how_a_script_ends(end, says, code):
    done = subprocess.run([sys.executable, "-c", BEGIN + end], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == (says, code), done.stderr


def test_a_sys_exit_that_was_imported_before_there_was_a_store_is_noted():
    script = "from sys import exit\n" + BEGIN + "exit(3)"
    environment = os.environ | {"DMLC_ROLE": "worker"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.returncode) == ("worker n1 failed: it exited with 3", 3), done.stderr


@pytest.mark.parametrize(("error", "cause"), [(InputError, Cause.INPUT), (ValueError, Cause.SCRIPT)])
def test_wrong_input_is_told_as_such(error, cause):
    end = f"from {error.__module__} import {error.__name__}; raise {error.__name__}('no')"
    environment = {**os.environ, VARIABLE: "id"}
    argv = [sys.executable, "-c", BEGIN + end]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert [told.cause for line in done.stderr.split("\n") if (told := failure_in(line)[1])] == [cause]


def test_what_a_failing_script_has_written_is_kept(tmp_path):
    path = tmp_path / "losses.csv"
    end = "rows = open(sys.argv[1], 'w'); rows.write('0.25'); sys.exit(3)"
    done = subprocess.run([sys.executable, "-c", BEGIN + end, path], capture_output=True, text=True, check=False)
    assert (done.returncode, path.read_text()) == (3, "0.25")
