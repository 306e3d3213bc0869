"""`python -m tests.fuzz.guided TARGET FOLDER [libFuzzer's flags]`: one target of targets.py, its inputs guided by coverage.

Needs atheris (extra `fuzz`). A run of its own, since nalb's modules must be imported after atheris watches imports. FOLDER keeps
what reaches new code; the target's files lie there too.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["nalb", "netem"]):
    from tests.fuzz import targets


def main() -> None:
    """Fuzz; libFuzzer ends the process."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    seeds, files = folder / "corpus", folder / "files"
    seeds.mkdir(parents=True, exist_ok=True)
    files.mkdir(exist_ok=True)
    for number, data in enumerate(targets.corpus(target)):
        (seeds / str(number)).write_bytes(data)
    run = targets.byte_targets(files)[target]

    def one_input(data: bytes) -> None:
        if target != "hosts" or targets.is_offline(data):
            run(data)

    atheris.Setup([sys.argv[0], str(seeds), *sys.argv[3:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
