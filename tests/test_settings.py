"""What the command line says reaches every process by its environment, whole."""

from dataclasses import fields, replace

import pytest

from nalb.errors import InputError
from nalb.launch.ranks import rank_specs
from nalb.launch.roles import Place, process_specs
from nalb.options import DECLARED, JobOptions, options_in, variables_of
from nalb.settings import Settings, check_agents, for_agents, from_environment

# Every declared option, with something else than what is not asked for.
ALL = JobOptions(
    root_port=9091,
    scheme="aware",
    own_schemes="my_package.mine:A,other:B",
    estimator="paper",
    alpha_bytes=1234.5,
    inflight_bytes=0,
    precision="float32",
    heartbeat_s=0.2,
    startup_s=77.0,
    deadline_s=20.5,
    batching="lb-bsp",
    batch_total=96,
    batch_most="40,64",
    predictor="rnn",
    predictor_models="/models",
    parallel="fela",
    token_weights="1,2,4",
    token_subset=1,
    token_apart=True,
    staleness=2,
    stragglers="probability:0.3:2:7",
    first_workers=3,
    one_level=True,
    sites="n0=north,n1=north,n2=south",
    label="exact-sites",
    checkpoints="/checkpoints",
    checkpoints_job="nalb launch (process 3)",
    verify_sums=True,
    is_stock=True,
    transport="pyzmq",
    observers="ipc:///observers",
    hold=True,
    in_store=True,
    samples_path="/samples.jsonl",
)


def test_the_sample_says_all():
    assert all(getattr(ALL, one.name) != one.default for one in fields(JobOptions))


def test_variables_say_the_options_again():
    told = variables_of(ALL, coordinators=True) | variables_of(ALL, coordinators=False)
    assert options_in(told) == {name: getattr(ALL, name) for name in DECLARED}
    assert len({one.name for one in DECLARED.values()}) == len(DECLARED)


def test_what_was_not_asked_for_is_not_said():
    assert variables_of(JobOptions(), coordinators=False) == {"NALB_SCHEME": "auto", "NALB_ESTIMATOR": "capacity"}
    assert variables_of(JobOptions(), coordinators=True) == {"NALB_HOLD": "0"}  # an inherited 1 would hold the job


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_every_process_reads_what_was_asked_for(role):
    places = [Place("a", "10.0.0.1"), Place("b", "10.0.0.2")]
    specs = process_specs(places, ["true"], ALL, {})
    (spec, *_) = [one for one in specs if one.role == role]
    found = from_environment(spec.environment, "host")
    unknown = {name for name, one in DECLARED.items() if one.is_coordinators and role != "scheduler"}
    own = {"is_stock", "transport", "sites"}  # what the scheme and the nodes make of them
    for name in DECLARED.keys() - unknown - own:
        assert getattr(found, name) == getattr(ALL, name), name
    assert (found.root_port, found.endpoint, found.role) == (9091, "tcp://10.0.0.1:9092", role)
    assert (found.num_workers, found.batch_maxima, found.is_stock) == (2, (40, 64), False)


def test_servers_of_a_job_by_sites_know_how_many_push():
    places = [Place(f"n{i}", f"10.0.0.{i + 1}", site=site) for i, site in enumerate(["north", "north", None, "south"])]
    specs = process_specs(places, ["true"], JobOptions(9091, scheme="exact"), {})
    found = {spec.name: from_environment(spec.environment, "host") for spec in specs}
    servers = {name: settings.pushers for name, settings in found.items() if settings.role == "server"}
    assert servers == {f"global server n{i}": 3 for i in range(4)} | {"site server n0": 2, "site server n1": 2}
    assert {(one.num_workers, one.num_servers) for one in found.values()} == {(4, 6)}
    assert {name: one.process for name, one in found.items()} == {name: name.rpartition(" ")[0] for name in found}
    sites = found["worker n0"].sites_of(["n0", "n1", "n2", "n3"])
    assert sites is not None
    assert sites.members == ((0, 1), (2,), (3,))


@pytest.mark.parametrize("sites", ["n0=east,n1=east", "n0=east,n1=west"])
@pytest.mark.parametrize("level", ["site", "global"])
def test_where_sums_have_one_level_servers_wait_for_all_workers(sites, level):
    places = [Place("n0", "10.0.0.1", site="north"), Place("n1", "10.0.0.2", site="north"), Place("n2", "10.0.0.3")]
    specs = process_specs(places, ["true"], JobOptions(9091, scheme="exact"), {})
    server = next(spec for spec in specs if spec.environment.get("NALB_LEVEL") == level)
    told = server.environment | {"NALB_SITES": sites, "DMLC_NUM_WORKER": "2"}
    assert from_environment(told, "host").pushers == 2


@pytest.mark.parametrize(
    ("sites", "more"),
    [
        ([None, None, None], {}),
        (["north", "north", "north"], {}),
        (["north", "middle", "south"], {}),
        (["north", "north", "south"], {"one_level": True}),
        (["north", "north", "south"], {"scheme": "elastic"}),
    ],
)
def test_other_jobs_are_as_if_no_node_named_its_site(sites, more):
    named, plain = (
        process_specs(
            [Place(f"n{i}", f"10.0.0.{i + 1}", site=site) for i, site in enumerate(one)],
            ["true"],
            JobOptions(9091, **{"scheme": "exact"} | more),
            {},
        )
        for one in (sites, [None] * 3)
    )
    assert named == plain


def test_defaults_are_those_of_settings():
    environ = {
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
    }
    found = from_environment(environ, "host")
    plain = {one.name: one.default for one in fields(Settings)}
    assert {name: getattr(found, name) for name in DECLARED} == {name: plain[name] for name in DECLARED}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("NALB_SCHEME", "magic", "environment variable NALB_SCHEME='magic' is not one of auto, stock, p3"),
        ("NALB_ALPHA_BYTES", "0", r"environment variable NALB_ALPHA_BYTES='0' is not a number in \[0.001, 1e\+12\]"),
        ("NALB_BATCH_MOST", "4,5", "environment variable NALB_BATCH_MOST='4, 5': give one number of samples for all"),
        ("NALB_HEARTBEAT_S", "5", "environment variable NALB_HEARTBEAT_S=5: a deadline of 10 s needs a sign of life every 1.5 s"),
    ],
)  # fmt: skip
def test_what_a_variable_may_not_say_names_it(name, text, says):
    environ = {
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
    }
    with pytest.raises(InputError, match=says):
        from_environment(environ | {name: text}, "host")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NALB_PRECISON", "NALB_PRECISION"),
        ("NALB_SCHEMES", "NALB_SCHEME"),
        ("NALB_KEY", "NALB_KEYS"),
        ("NALB_BATCHTOTAL", "NALB_BATCH_TOTAL"),
    ],
)
def test_a_misspelt_variable_is_an_error(name, meant):
    with pytest.raises(InputError, match=f"environment variable {name} is unknown: write {meant}, or unset it"):
        options_in({name: "int8"})


def test_other_variables_that_begin_alike_are_nobodys_mistake():
    own = [
        "COORDINATOR_PORT",
        "CHECKPOINTS_DIR",
        "STACK",
        "HOOKS",
        "ALONE",
        "AGENTS",
        "JOB",
        "LEVEL",
        "FIND",
        "MEMBER",
        "COUNTERS",
        "SITES_FILE",
        "RUN",
        "DATA",
        "SEED",
    ]
    assert options_in({f"NALB_{name}": "x" for name in own}) == {}


def test_a_job_of_agents_needs_no_variables_of_ps_lite():
    environ = variables_of(ALL, coordinators=False) | {"NALB_ADDRESSES": "10.0.0.1,10.0.0.2", "NALB_KEYS": "/keys/n1"}
    settings = for_agents(environ, node="n1", endpoint="tcp://10.0.0.1:1", size=2, role="agent")
    assert (settings.num_workers, settings.num_servers, settings.process) == (2, 2, "agent")
    assert (settings.scheme, settings.deadline_s, settings.keys_path) == ("aware", 20.5, "/keys/n1")
    assert settings.addresses == {"10.0.0.1", "10.0.0.2"}
    assert for_agents({"NALB_DEADLINE_S": "1"}, node="n", endpoint="", size=1, role="agent").heartbeat_s == 0.15
    for wrong in ({"NALB_HEARTBEAT_S": "50"}, {"NALB_SITES": "n0=east"}, {"NALB_SCHEME": "?"}):
        with pytest.raises(InputError, match=f"environment variable {next(iter(wrong))}"):
            for_agents(wrong, node="n1", endpoint="", size=2, role="agent")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NALB_BATCHING", "asp", "NALB_BATCHING=asp is of MXNet alone: choose another, or unset it"),
        ("NALB_BATCHING", "lb-bsp-federated", "NALB_BATCHING=lb-bsp-federated is of MXNet alone"),
        ("NALB_SCHEME", "stock", "NALB_SCHEME=stock: PyTorch alone is gloo"),
        ("NALB_SCHEME", "p3", "NALB_SCHEME=p3: PyTorch alone is gloo"),
        ("NALB_STOCK", "1", "NALB_STOCK is of MXNet alone: unset it"),
        ("NALB_PARALLEL", "fela", "NALB_PARALLEL is of MXNet alone: unset it"),
        ("NALB_STALENESS", "2", "NALB_STALENESS is of MXNet alone: unset it"),
        ("NALB_STRAGGLERS", "round-robin:1", "NALB_STRAGGLERS is of MXNet alone: unset it"),
    ],
)
def test_what_only_mxnet_has_is_refused_in_a_job_of_agents(name, value, says):
    with pytest.raises(InputError, match=f"environment variable {says}"):
        check_agents(for_agents({name: value}, node="n0", endpoint="", size=2, role="scheduler"))


def test_the_gloo_of_a_comparison_is_no_mistake():
    places, options = [Place("a", "10.0.0.1"), Place("b", "10.0.0.2")], JobOptions(scheme="stock", in_store=True)
    specs = rank_specs(places, ["true"], replace(options, label="gloo", root_port=9091), {})
    (spec,) = [one for one in specs if one.role == "scheduler"]
    check_agents(for_agents(spec.environment, node="a", endpoint="", size=2, role="scheduler"))


def test_fewer_bytes_and_gloo_are_of_pytorch():
    environ = {
        "NALB_PRECISION": "int8",
        "NALB_NODE": "n0",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "9091",
    }
    environ |= {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2"}
    assert for_agents(environ, node="n0", endpoint="tcp://127.0.0.1:1", size=2, role="agent").precision == "int8"
    with pytest.raises(InputError, match="NALB_PRECISION=int8: fewer bytes need the plane for PyTorch"):
        from_environment(environ, "host")
    environ |= {"NALB_PRECISION": "float32", "NALB_SCHEME": "gloo"}
    assert for_agents(environ, node="n0", endpoint="", size=2, role="worker").scheme == "gloo"
    with pytest.raises(InputError, match="NALB_SCHEME=gloo: MXNet alone is stock"):
        from_environment(environ, "host")
    with pytest.raises(InputError, match="NALB_PRECISION='int5' is not one of float32, bfloat16, float16, int8, int4"):
        options_in({"NALB_PRECISION": "int5"})
