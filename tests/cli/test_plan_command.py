import json
import re

import pytest

from nalb.cli.main import run

RATES = "220,150,100,180,60,200"


def plan(capsys, *words):
    assert run(["plan", *words]) == 0
    return capsys.readouterr().out


def complaint(capsys, *words):
    assert run(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(("size", "expected_s"), [("12.9e6", 1.72), ("94200000", 12.56)])
def test_known_bounds(capsys, size, expected_s):
    for scheme in ("exact", "oracle", "aware"):
        words = ("--capacities-mbps", RATES, "--model-bytes", size, "--scheme", scheme, "--json")
        answer = json.loads(plan(capsys, *words))
        assert sorted(answer) == ["bound_s", "predicted_s", "shares"]
        assert answer["bound_s"] == pytest.approx(expected_s)
        assert answer["predicted_s"] == pytest.approx(expected_s, rel=0.01)
        assert sum(answer["shares"]) == float(size)


@pytest.mark.parametrize("scheme", ["average", "elastic"])
def test_equal_shares_and_what_they_cost(capsys, scheme):
    words = ("--capacities-mbps", RATES, "--model-bytes", "12.9e6", "--scheme", scheme, "--json")
    answer = json.loads(plan(capsys, *words))
    assert answer["shares"] == [2150000] * 6
    assert answer["predicted_s"] == pytest.approx((12.9e6 + 4 * 2150000) / 7.5e6)


def test_up_and_down_may_differ(capsys):
    answers = [
        plan(capsys, "--capacities-mbps", rates, "--model-bytes", "1e6", "--scheme", "exact", "--json")
        for rates in ("100/200,300/50, 70", "100,50,70")
    ]
    assert answers[0] == answers[1]


def test_table_for_people(capsys):
    text = plan(capsys, "--capacities-mbps", RATES, "--model-bytes", "12.9e6", "--scheme", "exact")
    assert len(text.splitlines()) == 8
    assert "bound 1.72 s" in text


def test_explanation_names_the_tensors_of_a_workload(capsys):
    text = plan(capsys, "--capacities-mbps", RATES, "--replay", "mobilenet", "--explain", "--scheme", "exact")
    assert "conv0_weight (3456 bytes):" in text
    words = ("--capacities-mbps", RATES, "--replay", "mobilenet", "--explain", "--json")
    assert any("conv0_weight" in line for line in json.loads(plan(capsys, *words))["explain"])


def test_explanation_of_plain_bytes(capsys):
    for size in ("12.9e6", "1000003"):
        assert "model (" in plan(capsys, "--capacities-mbps", RATES, "--model-bytes", size, "--explain")


TOML = """
[[links]]
src = "n0"
dst = "n1"
mbps = 10
[[links]]
src = 2
dst = 0
mbps = 12.5
delay_ms = 3
"""


def test_pairs_from_toml_json_and_a_network_file(capsys, tmp_path):
    rows = [{"src": 0, "dst": "n1", "mbps": 10}, {"src": "n2", "dst": "n0", "mbps": 12.5}]
    named = TOML.replace('"n0"', '"a"').replace('"n1"', '"b"') + "".join(f'[[nodes]]\nname = "{n}"\n' for n in "abcd")
    files = {"p.toml": TOML, "p.json": json.dumps({"links": rows}), "q.json": json.dumps(rows), "net.toml": named}
    answers = set()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        words = ("--capacities-mbps", "100,100,100,100", "--model-bytes", "1e6", "--scheme", "exact", "--json")
        answers.add(plan(capsys, *words, "--pairs", str(tmp_path / name)))
    (answer,) = answers
    shares = json.loads(answer)["shares"]
    assert (shares[0] + shares[1]) * 8 / 10e6 <= json.loads(answer)["bound_s"] * (1 + 1e-5)
    assert shares[3] == max(shares)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[[links]]\nsrc = 0\ndst = 0\nmbps = 1", "links[0].dst"),
        ("[[links]]\nsrc = 0\ndst = 9\nmbps = 1", "links[0].dst"),
        ("[[links]]\nsrc = true\ndst = 1\nmbps = 1", "links[0].src"),
        ('[[links]]\nsrc = "x"\ndst = 1\nmbps = 1', "links[0].src"),
        ("[[links]]\nsrc = 0\ndst = 1\nmbps = 0", "links[0].mbps"),
        ("[[links]]\nsrc = 0\ndst = 1\nmbps = nan", "links[0].mbps"),
        ("[[links]]\nsrc = 0\ndst = 1", "links[0].mbps is missing: give a number above 0"),
        ("[[links]]\nsrc = 0\ndst = 1\nmbps = 1\nspeed = 2", "links[0].speed is unknown: use src, dst, mbps"),
        ("[[links]]\nsrc = 0\ndst = 1\nmbps = 1\n" * 2, "links[1]"),
        ("links = 3", "links"),
        ("links = [3]", "links[0]"),
        ("nodes = 1", "links"),
        ("links = []\nnodes = 1", "nodes"),
        ("links = []\n[[nodes]]\nname = 'a'", "nodes"),
        ("not toml", "TOML"),
        ("{not json", "JSON"),
    ],
)
def test_bad_pairs_are_one_line_with_file_and_field(capsys, tmp_path, text, where):
    path = tmp_path / "pairs.toml"
    path.write_text(text, encoding="utf-8")
    words = ("--capacities-mbps", "1,2,3", "--model-bytes", "1e6", "--pairs", str(path))
    line = complaint(capsys, *words)
    assert str(path) in line
    assert where in line


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--capacities-mbps", "1,x", "--model-bytes", "5"), "'x'"),
        (("--capacities-mbps", "1,,2", "--model-bytes", "5"), "''"),
        (("--capacities-mbps", "1/2/3", "--model-bytes", "5"), "UP/DOWN"),
        (("--capacities-mbps", "1,0", "--model-bytes", "5"), "'0'"),
        (("--capacities-mbps", "1,inf", "--model-bytes", "5"), "'inf'"),
        (("--capacities-mbps", "1,nan", "--model-bytes", "5"), "'nan'"),
        (("--capacities-mbps", "1,2", "--model-bytes", "-5"), "--model-bytes"),
        (("--capacities-mbps", "1,2", "--model-bytes", "1.5"), "whole"),
        (("--capacities-mbps", "1,2", "--model-bytes", "1e99"), "--model-bytes"),
        (("--capacities-mbps", "1,2"), "--model-bytes or --replay"),
        (("--capacities-mbps", "1,2", "--replay", "mobilenet", "--model-bytes", "5"), "mobilenet"),
        (("--capacities-mbps", "1,2", "--model-bytes", "5", "--alpha-bytes", "0"), "--alpha-bytes"),
        (("--capacities-mbps", "1,2", "--model-bytes", "5", "--pairs", "/nowhere.toml"), "/nowhere.toml"),
    ],
)
def test_bad_words_are_one_line(capsys, words, what):
    # argparse takes a word that begins with a dash for a flag unless it looks like a number: -5 does
    assert what in complaint(capsys, *words)


def test_a_network_of_sites_is_planned_on_both_levels(capsys):
    told = json.loads(plan(capsys, "--network", "geo2x3", "--replay", "mobilenet", "--json"))
    assert told["wan_bound_s"] == pytest.approx(12_868_904 / 7.5e6)  # the whole model through 60 Mbit/s
    assert told["bound_s"] == max(told["wan_bound_s"], told["lan_bound_s"])
    assert sum(told["leads"]) == pytest.approx(2 * sum(told["shares"]))  # each site leads the whole model
    text = plan(capsys, "--network", "geo2x3", "--replay", "mobilenet", "--explain")
    assert "the uplinks bind" in text
    assert "site east: 12868904 bytes cross each way, 1.716 s at 60 Mbit/s" in text
    flat = json.loads(plan(capsys, "--network", "geo2x3", "--replay", "mobilenet", "--scheme", "average", "--json"))
    assert flat["bound_s"] > 3 * told["bound_s"]
    assert "leads" not in flat


def test_a_machine_that_is_alone_in_its_site_has_its_own_link_for_an_uplink(capsys, tmp_path):
    nodes = "".join(f"[[nodes]]\nname = '{name}'\nsite = 'hill'\n" for name in ("a1", "a2"))
    alone = "".join(f"[[nodes]]\nname = '{name}'\nup_mbps = 50\ndown_mbps = 90\n" for name in ("b", "c"))
    site = "[[sites]]\nname = 'hill'\nup_mbps = 40\ndown_mbps = 60\n"
    (tmp_path / "net.toml").write_text(f"name = 'x'\n[defaults]\nup_mbps = 200\ndown_mbps = 200\n{site}{nodes}{alone}")
    text = plan(capsys, "--network", str(tmp_path / "net.toml"), "--model-bytes", "12e6", "--explain")
    table, explained = text.split("bound: uplinks ")
    rows = {row[0]: row[1:] for line in table.splitlines() if (row := line.split())}
    assert rows["b"][:2] == ["50", "90"]
    assert float(rows["b"][4]) == pytest.approx(float(explained.split()[0]), rel=0.01)
    assert rows["hill"][:2] == ["40", "60"]
    assert re.search(r"  b: sums \d+ bytes for all, sends", text)
    assert re.search(r"  a1: sums \d+ bytes for its site and \d+ bytes for all, sends", text)


def test_a_network_file_says_its_caps_itself(capsys):
    words = ("--network", "wan4-static", "--pairs", "x.toml", "--model-bytes", "1e6")
    assert "--pairs is of --capacities-mbps" in complaint(capsys, *words)


def test_precisions_that_pay_are_chosen_and_explained(capsys):
    words = ("--capacities-mbps", "200,120,160,50", "--model-bytes", "12.9e6", "--precision")
    answer = json.loads(plan(capsys, *words, "auto", "--json"))
    assert answer["answers"] == "int8"
    assert answer["pushes"] == ["float16", "int8", "float16", "int8"]
    assert answer["bound_s"] < 0.26 * answer["whole_bound_s"]
    forced = json.loads(plan(capsys, *words, "float16", "--json"))
    assert forced["pushes"] == ["float16"] * 4
    text = plan(capsys, *words, "auto", "--explain")
    assert "answers int8; pushes n0 float16, n1 int8, n2 float16, n3 int8; bound with float32 alone" in text
    assert "n3 pushes int8: with float32 the exchange would take" in text
