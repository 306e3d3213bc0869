"""Which names of stores are let through, refused, and why."""

import pytest

from kvstore_patch.store.names import MXNETS_OWN, NAMES, check, is_in_job, refusal
from nalb.errors import StoreError

JOB = {"DMLC_ROLE": "worker", "NALB_COORDINATOR": "127.0.0.1:9001"}
STOCK = JOB | {"NALB_STOCK": "1"}
ELSEWHERE: dict[str, str] = {}


@pytest.mark.parametrize("environ", [JOB, STOCK, ELSEWHERE, {"DMLC_ROLE": "worker"}])
def test_what_is_known_is_let_through(environ: dict[str, str]) -> None:
    for name in (*NAMES, "horovod", "local", "device", "nccl", "local_allreduce_device"):
        check(name, (*NAMES, "horovod"), environ)


def test_mxnets_distributed_stores_are_let_through_where_its_servers_are() -> None:
    for name in MXNETS_OWN:
        check(name, NAMES, STOCK)
        check(name, NAMES, ELSEWHERE)
        if name.startswith("dist"):
            with pytest.raises(
                StoreError, match=f"own kvstore '{name}'.*: write 'nalb', or launch with --scheme stock"
            ):
                check(name, NAMES, JOB)


@pytest.mark.parametrize("name", ["nalbb", "nabl", "nal", "nalb_dist_sync", "dist_sync_nlab", "dist-sync-nalb"])
def test_slips_of_the_pen_are_refused_everywhere(name: str) -> None:
    for environ in (JOB, STOCK, ELSEWHERE):
        with pytest.raises(StoreError, match=f"kvstore '{name}' is neither .*: write 'nalb'"):
            check(name, NAMES, environ)


def test_other_unknown_names_are_mxnets_business_outside_a_job() -> None:
    for name in ("byteps", "p3", "global"):
        check(name, NAMES, ELSEWHERE)
        with pytest.raises(StoreError, match=f"kvstore '{name}' is neither"):
            check(name, NAMES, JOB)


def test_a_job_is_a_workers_and_nalbs() -> None:
    assert is_in_job(JOB)
    assert is_in_job({"DMLC_ROLE": "worker", "NALB_KEYS": "n0.keys"})
    assert not any(map(is_in_job, (ELSEWHERE, {"DMLC_ROLE": "worker"}, JOB | {"DMLC_ROLE": "server"})))


def test_the_refusal_says_what_is_missing_and_what_to_do() -> None:
    assert "no DMLC_ROLE=worker and no NALB_COORDINATOR: start it by `nalb launch" in str(refusal(ELSEWHERE))
    assert "has no NALB_COORDINATOR: start it" in str(refusal({"DMLC_ROLE": "worker"}))
