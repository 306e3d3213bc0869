"""docs/recipes: their files fit nalb and the schemas, and the scripts that their pages change are jobs."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.conftest import ROOT
from tests.page_scripts import RECIPES, run_script, sides
from tests.test_docs import load

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((RECIPES / name).read_text(encoding="utf-8")))


def pod_args(job: dict[str, Any]) -> list[str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return [*container["command"], *container["args"]]


def launch_lines() -> dict[str, list[str]]:
    """The words after `nalb` in each recipe's file."""
    (node,) = documents("kubernetes/jobset.yaml")[0]["spec"]["replicatedJobs"]
    found = {
        "job.yaml": pod_args(documents("kubernetes/job.yaml")[1])[1:],
        "jobset.yaml": pod_args(node["template"])[1:],
        "compose.yaml": shlex.split(documents("docker/compose.yaml")[0]["x-node"]["command"]),
    }
    for name, script in (
        ("job.sbatch", (RECIPES / "slurm/job.sbatch").read_text(encoding="utf-8")),
        ("nalb.yaml", documents("skypilot/nalb.yaml")[0]["run"]),
    ):
        (line,) = re.findall(r"nalb (launch .*)", script.replace("\\\n", " "))
        found[name] = shlex.split(line)
    return found


@pytest.mark.parametrize(("name", "words"), launch_lines().items())
def test_a_recipe_starts_one_node_of_several(name: str, words: list[str]) -> None:
    args = load("docs/extensions/commands.py").parser().parse_args(words)
    assert args.plain, name
    assert all((args.root, args.nodes, args.rank, args.out)), name
    assert args.command[0] == "--", name
    assert args.command[1:] in (["python", "train.py"], ["$@"]), name


def test_files_are_as_kubernetes_and_compose_have_it() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="it comes with the extra dev")
    (node,) = documents("kubernetes/jobset.yaml")[0]["spec"]["replicatedJobs"]
    inner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, "spec": node["template"]["spec"]}
    service, job = documents("kubernetes/job.yaml")
    for one in (service, job, inner):
        kubernetes_validate.validate(one, "1.31", strict=True)
    job["spec"]["completionmode"] = job["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):  # the schema does refuse something
        kubernetes_validate.validate(job, "1.31", strict=True)
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, RECIPES / "docker/compose.yaml"], check=True, capture_output=True, timeout=60)


def test_pods_meet_where_their_names_lead() -> None:
    service, job = documents("kubernetes/job.yaml")
    name = job["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert f"--root={name}-0.{service['metadata']['name']}" in pod_args(job)
    (jobset,) = documents("kubernetes/jobset.yaml")
    (node,) = jobset["spec"]["replicatedJobs"]
    assert f"--root={jobset['metadata']['name']}-{node['name']}-0-0.{jobset['metadata']['name']}" in pod_args(
        node["template"]
    )
    for one in (job["spec"], node["template"]["spec"]):
        assert one["completions"] == one["parallelism"] == 4
    assert "--nodes=4" in pod_args(job)
    assert "--nodes=4" in pod_args(node["template"])


def test_the_image_has_all_that_the_wheel_is_built_from(tmp_path: Path) -> None:
    """What the Dockerfile copies is enough for the build back end to name the package; a person builds the image."""
    text = (RECIPES / "docker/Dockerfile").read_text(encoding="utf-8")
    copies = [line.split()[1:] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    for *sources, target in copies:
        assert target.startswith("/nalb/")
        place = tmp_path / target.removeprefix("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    wanted = {path.name for path in (ROOT / "nalb").iterdir() if path.suffix == ".py"}
    assert wanted <= {path.name for path in (tmp_path / "nalb/nalb").iterdir()}
    ask = "import json, build_backend as b; print(json.dumps(b.get_requires_for_build_wheel()))"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=tmp_path / "nalb",
        env={"PYTHONPATH": "scripts", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout.splitlines()[-1]), list)


def test_scripts_of_horovod_and_mxnet_become_the_same() -> None:
    (_, torch_script), (_, mxnet_script) = sides("from-horovod.md")
    ((_, from_mxnet),) = sides("from-dist-sync.md")
    assert mxnet_script == from_mxnet
    compile(torch_script, "train.py", "exec")


@pytest.mark.jobs
@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_a_script_of_dist_sync_learns_the_same(tmp_path: Path) -> None:
    ((before, after),) = sides("from-dist-sync.md")
    losses = []
    for scheme, script in (("stock", before), ("exact", after)):
        (tmp_path / f"{scheme}.py").write_text(script)
        done = run_script(tmp_path / f"{scheme}.py", "--scheme", scheme)
        losses.append(
            sorted(re.findall(r"worker\] step (\d) loss ([\d.]+)", done))
        )  # which node has which rank may differ
    assert len(losses[0]) == 20
    assert losses[0] == losses[1]
    assert float(losses[0][-1][1]) < float(losses[0][0][1])
