"""The processes of a PyTorch job and their environments."""

import pytest

from nalb.errors import InputError
from nalb.launch.ranks import rank_specs, replay_program, torch_program
from nalb.launch.roles import Place
from nalb.options import JobOptions

PLACES = [Place("a", "192.0.2.1"), Place("b", "192.0.2.2", is_machine=True)]
OPTIONS = JobOptions(root_port=9091, scheme="exact", observers="ipc://somewhere", transport="mxnet")


def test_ranks_are_started_as_torchrun_starts_them() -> None:
    coordinator, *ranks = rank_specs(PLACES, ["python", "train.py"], OPTIONS, {})
    assert [(one.name, one.is_coordinator) for one in (coordinator, *ranks)] == [
        ("scheduler a", True),
        ("worker a", False),
        ("worker b", False),
    ]
    for rank, (place, one) in enumerate(zip(PLACES, ranks, strict=True)):
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        told |= {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "9091"}
        told |= {"NALB_NODE": place.name, "NALB_ADDRESS": place.address, "NALB_SCHEME": "exact"}
        told |= {"NALB_COORDINATOR": "192.0.2.1:9092"}
        assert told.items() <= one.environment.items()
        assert ("OMP_NUM_THREADS" in one.environment) is not place.is_machine
        assert one.argv == ("python", "train.py")
        assert not {"NALB_OBSERVERS", "NALB_SHIM_TRANSPORT", "NALB_KEYS", "DMLC_ROLE"} & one.environment.keys()
    assert coordinator.argv[-4:] == ("192.0.2.1:9092", "2", "a", "--alone")
    assert coordinator.environment["NALB_OBSERVERS"] == "ipc://somewhere"


def test_ranks_whose_batches_are_sized_keep_memory() -> None:
    options = JobOptions(root_port=9091, scheme="exact", batching="lb-bsp")
    _, *ranks = rank_specs(PLACES, ["python"], options, {"MALLOC_ARENA_MAX": "3"})
    for one in ranks:
        assert one.environment["NALB_BATCHING"] == "lb-bsp"
        assert one.environment["MALLOC_ARENA_MAX"] == "3", "as the user has set it"
        assert "MALLOC_TRIM_THRESHOLD_" in one.environment


def test_each_rank_has_its_nodes_keys() -> None:
    specs = rank_specs(PLACES, ["python"], OPTIONS, {}, "/keys")
    assert [one.environment["NALB_KEYS"] for one in specs] == ["/keys/a.keys", "/keys/a.keys", "/keys/b.keys"]


def test_gloo_alone_has_no_coordinator() -> None:
    options = JobOptions(root_port=9091, scheme="gloo")
    program = torch_program(["python"])
    specs = program.specs(PLACES, options, {}, None, {})
    assert [one.name for one in specs] == ["worker a", "worker b"]
    assert not any("NALB_COORDINATOR" in one.environment for one in specs)
    assert not program.is_joined(options)
    assert program.is_joined(OPTIONS)


def test_a_single_rank_has_a_coordinator_only_in_a_replay() -> None:
    (rank,) = rank_specs(PLACES[:1], ["python"], OPTIONS, {})
    assert (rank.name, "NALB_COORDINATOR" in rank.environment) == ("worker a", False)
    names = [one.name for one in replay_program("mobilenet", 5.0).specs(PLACES[:1], OPTIONS, {}, None, {})]
    assert names == ["scheduler a", "worker a"]


def test_sites_are_told() -> None:
    places = [Place(name, f"192.0.2.{name}", site=site) for name, site in (("1", "x"), ("2", "x"), ("3", "y"))]
    for one in rank_specs(places, ["python"], OPTIONS, {}):
        assert one.environment["NALB_SITES"] == "1=x,2=x,3=y"


def test_a_node_without_a_role_has_no_rank() -> None:
    with pytest.raises(InputError, match="b: a rank of PyTorch is worker and server: give each node both roles"):
        rank_specs([PLACES[0], Place("b", "192.0.2.2", is_server=False)], ["python"], OPTIONS, {})


def test_replays_know_all_agents_and_have_no_ring() -> None:
    coordinator, *ranks = replay_program("mobilenet", 5.0).specs(PLACES, OPTIONS, {}, None, {})
    assert "--no-ring" in coordinator.argv
    assert {one.environment["NALB_AGENTS"] for one in ranks} == {"192.0.2.1:9093,192.0.2.2:9093"}
    assert ranks[0].argv[-4:] == ("nalb.plane.replay", "mobilenet", "--compute-ms", "5.0")
