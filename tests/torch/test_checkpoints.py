"""Checkpoints of one process of PyTorch; a job's are in tests/launch/test_torch_checkpoints.py."""

import os
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from nalb.checkpoints import folder as folders
from nalb.errors import CheckpointError
from tests.torch import ranks

torch = pytest.importorskip("torch")
from nalb.torch import Checkpoints, Progress  # noqa: E402 - torch may be missing
from nalb.torch.checkpoints import sweep_kept  # noqa: E402

STEPS = 9


class Training:
    """A net with Dropout, BatchNorm and momentum, its schedule, and checkpoints of all."""

    def __init__(self, folder: Path, width: int = 20, **options: object):
        torch.manual_seed(1)
        nn = torch.nn
        self.net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        told = {"every": 3, "others": [self.schedule]} | options
        self.checkpoints = Checkpoints(self.net, self.optimizer, folder=folder, **told)

    def go_on(self, steps: int) -> int:
        """Train up to so many steps, and return with which it began."""
        at = begun = self.checkpoints.restore().iteration
        while at < steps:
            self.optimizer.zero_grad()
            self.net(torch.rand(8, 4)).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
            at += 1
            self.checkpoints.after_step(Progress(at))
        return begun

    @property
    def state(self) -> list[object]:
        """All that the net and the optimizer hold."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [*(one.tolist() for one in self.net.state_dict().values()), rates]


def test_a_training_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    whole = Training(tmp_path / "whole")
    assert whole.go_on(STEPS) == 0
    assert Training(tmp_path / "parts").go_on(STEPS - 2) == 0
    goes_on = Training(tmp_path / "parts")
    assert goes_on.go_on(STEPS) == 6
    assert goes_on.state == whole.state
    names = [path.name for path in folders.paths(tmp_path / "parts")]
    assert names == [folders.file_name(6), folders.file_name(9)], "the newest two"


@pytest.mark.torch
def test_ranks_whose_disks_are_apart_go_on_from_the_newest_of_all(tmp_path: Path) -> None:
    ended = ranks.run("apart.py", str(tmp_path), size=3, within_s=60.0)
    assert [one.code for one in ended] == [0] * 3, [one.output[-3000:] for one in ended]


@pytest.mark.torch
def test_values_that_are_sharded_over_ranks_are_refused_on_every_rank(tmp_path: Path) -> None:
    """Each rank would take rank 0's part of them for its own. DTensors of which all ranks have the whole are saved.

    So is ZeroRedundancyOptimizer, once rank 0 has its whole state.
    """
    named = {
        "fully_shard": "parameter 0.weight",
        "fsdp1": "module FullyShardedDataParallel (FullyShardedDataParallel)",
        "buffer": "buffer 0.mean",
        "value": "momentum_buffer of parameter 0 of SGD",
    }
    why = "is sharded over ranks, of which one writes: use torch.distributed.checkpoint"
    refused = [f"{kind}: {call}: {name} {why}" for kind, name in named.items() for call in ("restore", "save")]
    for one in ranks.run("sharded.py", str(tmp_path), size=2, within_s=120.0):
        assert one.code == 0, one.output[-3000:]
        said = [line for line in one.output.splitlines() if "sharded" in line or "goes on" in line]
        assert [line for line in said if not line.startswith("goes on from")] == [
            *refused,
            "copies: goes on",
            "whole_buffer: goes on",
            "zero: goes on",
        ]


def test_a_damaged_file_is_skipped_and_removed_later(tmp_path: Path) -> None:
    Training(tmp_path).go_on(6)
    path = tmp_path / folders.file_name(6)
    path.write_bytes(path.read_bytes()[:-1])
    training = Training(tmp_path)
    assert training.checkpoints.restore().iteration == 3
    training.checkpoints.save(Progress(4))
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": 2}, "seed is 0 there and 2 here"),
        ({"settings": {"total": 64}}, "total is None there and 64 here"),
        (
            {"width": 30},
            r"is of another training \(RuntimeError: .* for Sequential: size mismatch for .*\): use another",
        ),
        ({"others": []}, r"is of another training \(.*\): use another folder"),
    ],
)
def test_another_training_is_refused(tmp_path: Path, options: dict[str, object], says: str) -> None:
    Training(tmp_path).go_on(3)
    with pytest.raises(CheckpointError, match=says):
        Training(tmp_path, **options).checkpoints.restore()  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.int64(1)])
def test_numbers_of_numpy_are_read_back(tmp_path: Path, number: np.generic) -> None:
    def training() -> Training:
        one = Training(tmp_path, others=[])
        one.optimizer.param_groups[0]["weight_decay"] = number
        return one

    training().go_on(3)
    later = training()
    assert later.go_on(4) == 3
    assert later.optimizer.param_groups[0]["weight_decay"] == number


class Kept:
    """A part whose state is this value."""

    def __init__(self, value: object):
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"past": [0.5, {"last": self.value}]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.value = state["past"][1]["last"]  # type: ignore[index]


@pytest.mark.parametrize("value", [np.ones(2), np.datetime64(1, "ns"), Lock()], ids=lambda one: type(one).__name__)
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, value: object) -> None:
    Training(tmp_path, others=[Kept(1)]).go_on(3)
    odd = Training(tmp_path, others=[Kept(value)]).checkpoints
    where = rf"cannot hold Kept\['past'\]\[1\]\['last'\] \({type(value).__name__}\): give"
    with pytest.raises(CheckpointError, match=where) as caught:
        odd.save(Progress(4))
    assert caught.value.writing == 4
    assert [path.name for path in tmp_path.glob("*.nalb")] == [folders.file_name(3)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_device_meta_lacks_are_written(tmp_path: Path) -> None:
    def training(fill: float) -> tuple[Training, Kept]:
        kept = Kept(torch.nested.nested_tensor([torch.full((2,), fill), torch.full((3,), fill)]))
        return Training(tmp_path, others=[kept]), kept

    training(0.5)[0].go_on(3)
    later, kept = training(0.0)
    assert later.go_on(3) == 3
    assert kept.value[1].tolist() == [0.5] * 3  # type: ignore[index]


def test_types_that_are_not_read_are_no_other_training(tmp_path: Path) -> None:
    """As where the script that wrote allows a type by torch.serialization.add_safe_globals, and the one that reads does not."""
    with torch.serialization.safe_globals([Kept]):
        Training(tmp_path, others=[Kept(Kept(1))]).go_on(3)
        assert Training(tmp_path, others=[Kept(0)]).go_on(3) == 3
    with pytest.raises(
        CheckpointError, match=rf"{folders.file_name(3)} holds types that torch .*: use another folder"
    ) as caught:
        Training(tmp_path, others=[Kept(0)]).checkpoints.restore()
    assert str(caught.value).isprintable(), "one line, no escape codes"


def test_without_a_folder_or_without_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(folders.VARIABLE, raising=False)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    assert Checkpoints(net, optimizer, every=0).restore() == Progress()
    with pytest.raises(CheckpointError, match="no folder for checkpoints"):
        Checkpoints(net, optimizer, every=1)


def test_what_rounding_took_stays_for_as_many_checkpoints_as_there_are(tmp_path: Path) -> None:
    """Neither what an agent left unfinished when it was killed nor files of ranks that are gone stay."""
    names = [f"kept-{iteration:012}-{rank}.npz" for rank in range(3) for iteration in (3, 6, 9, 12)]
    for number, name in enumerate(
        [*names, "kept-000000000009-0.npz.part", "kept-000000000009-1.npz.part", "of-others.npz"]
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    sweep_kept(tmp_path / names[3], 0, 2, keep=2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names[2:8], "kept-000000000009-1.npz.part", "of-others.npz"}
    sweep_kept(tmp_path / names[7], 1, 2, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {*names[2:4], *names[6:8], "of-others.npz"}
