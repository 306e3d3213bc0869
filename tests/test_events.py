"""The lines of samples.jsonl as they have always been: what is read is written the same, byte by byte."""

import msgspec
import pytest

from nalb.events import AnyEvent, BatchEvent, Event, IterationEvent, decode_line, encode_line

LINES = [
    b'{"event":"state","at_s":1.5,"phase":"RUN","nodes":["n0"]}',
    b'{"event":"missed","at_s":1.5,"events":17}',
    b'{"event":"ready","at_s":15927.3,"nodes":["n0","n1"],"servers":["n1","n0"]}',
    b'{"event":"ready","at_s":15927.3,"nodes":["n0","n1","n2"],"servers":["n0"],"sites":{"n0":"a","n1":"a","n2":"b"}}',
    b'{"event":"layout","at_s":15929.1,"model_bytes":12868904,"slices":178,"probes":12,"slice_bytes":92832,"iteration":0,'
    b'"alpha_bytes":1000.0,"fixed_slice_bytes":null,"num_probe":2,"tensors":[["0",864,"float32",0]]}',
    b'{"event":"idle","at_s":15929.2}',
    b'{"event":"plan","at_s":15929.3,"iteration":0,"scheme":"exact","reason":"links are not measured yet","shares":{"n0":6434452.0,'
    b'"n1":null},"predicted_s":null,"inflight_bytes":0,"server_of_slice":[1,0]}',
    b'{"event":"plan","at_s":15929.3,"iteration":0,"scheme":"stock","reason":"","inflight_bytes":0,"server_of_slice":[]}',
    b'{"event":"samples","at_s":15929.4,"iteration":0,"rows":[[0,1,1,5104,0,321],[1,0,0,5104,12,400]]}',
    b'{"event":"iteration","at_s":15931.7,"iteration":1,"scheme":"exact","communication_s":{"n0":2.5,"n1":2.25},'
    b'"iteration_s":{"n0":2.5,"n1":2.25},"plan_wait_s":{"n0":0.01,"n1":0.0},"started_s":{"n0":1.0,"n1":1.0},"computed_s":{},'
    b'"finished_s":{"n0":3.5,"n1":3.25},"samples":2,"drops":0,"rejected":{},"measured":true,"round_trip_s":0.00025,"slots":178,'
    b'"reason":"rates are known","shares":{"n0":6434452.0,"n1":6434452.0},"predicted_s":1.5,"load_bytes":{"n0":1.0,"n1":1.0},'
    b'"estimate":{"up":{"n0":6.5,"n1":null},"down":{"n0":6.5,"n1":null},"pairs":[["n0","n1",3.5]]},"cores_s":{"n0":0.5,"n1":0.5},'
    b'"configured":{"up":{"n0":6.5,"n1":7.5},"down":{"n0":6.5,"n1":7.5}},"bound_s":1.25,"planned_s":1.5,"span_s":1.4}',
    b'{"event":"iteration","at_s":15931.7,"iteration":1,"scheme":"gloo","communication_s":{"a":2.5},"iteration_s":{"a":2.5},'
    b'"plan_wait_s":{"a":0.0},"started_s":{"a":1.0},"computed_s":{"a":1.0},"finished_s":{"a":3.5},"bound_s":2.0}',
    b'{"event":"block","at_s":15931.8,"scheme":"exact","iterations":5}',
    b'{"event":"change","at_s":19609.1,"elapsed_s":20.003,"change":{"at_s":20.0,"nodes":{"n0":{"up_mbps":20,"down_mbps":20.5}},'
    b'"links":[{"src":"n0","dst":"n1","mbps":5.0}],"cpu_quotas":{"n3":0.075}}}',
    b'{"event":"change","at_s":19609.1,"elapsed_s":20.003,"change":{"at_s":20.0,"nodes":{},"links":[]}}',
    b'{"event":"batch","at_s":19589.0,"workers":["n1","n0"],"iteration":0,"batching":"lbb","sizes":[64,64],"compute_s":[6.1,6.2],'
    b'"period_s":[0.0,0.0],"wait_s":[0.5,0.25],"cpu_share":[0.5,0.25],"memory_share":[0.5,0.25],"next_sizes":[64,64],'
    b'"reason":"first iterations","remove":null,"profiles":[[[8,0.5]],null]}',
    b'{"event":"batch","at_s":19589.0,"workers":["n1"],"iteration":1,"batching":"lbb","sizes":[64],"compute_s":[6.1],'
    b'"period_s":[0.0],"wait_s":[0.5],"cpu_share":[0.5],"memory_share":[0.5],"next_sizes":[64],"reason":"none","remove":0}',
    b'{"event":"tokenshape","at_s":19589.0,"workers":["n0","n1"],"iteration":5,"parallel":"fela","staleness":0,"total":512,"chunks":8,'
    b'"weights":[1,2],"eligible":[[0,1],[1]],"reason":"weights 1,2, |S| = 1: case 3 of 4 is tried","is_apart":false}',
    b'{"event":"tokenshape","at_s":19589.0,"workers":["n0"],"iteration":50,"parallel":"fela","staleness":0,"total":512,"chunks":8,'
    b'"weights":[1],"eligible":[[0]],"reason":"weights 1, |S| = 1: the best of 4 cases","is_apart":false,"is_tuned":true}',
    b'{"event":"tokens","at_s":19590.0,"workers":["n0","n1"],"iteration":5,"iteration_s":1.5,"tokens":[1,0],"helped":[1,0],'
    b'"compute_s":[0.25,0.0],"fetch_s":[0.125,0.0],"fetched_bytes":[4096,0],"rows":[["FB2",3,0,1,64,100,400100,125000,250000,4096]]}',
    b'{"event":"tokens","at_s":19592.0,"workers":["n0"],"iteration":6,"iteration_s":1.5,"tokens":[1],"helped":[0],"compute_s":[0.25],'
    b'"fetch_s":[0.0],"fetched_bytes":[0]}',
    b'{"event":"doubt","at_s":5.0,"process":"server n0","node":"n0","reason":"too fast"}',
    b'{"event":"shareduplink","at_s":5.0,"iteration":3,"nodes":["n0","n1"],"others":["n2"],"up_bytes_per_s":2.5,"down_bytes_per_s":3.5}',
    b'{"event":"abort","at_s":5.0,"reason":"the test ends"}',
    b'{"event":"abort","at_s":5.0,"reason":"phase init: no","failure":{"cause":"refused","detail":"no","phase":"init"}}',
    b'{"event":"started","at_s":5.0,"role":"worker","node":"n1"}',
    b'{"event":"ended","at_s":5.0,"role":"worker","node":"n1","exit_code":0}',
    b'{"event":"failure","at_s":5.0,"failure":{"cause":"silent","detail":"is silent","role":"worker","node":"n1",'
    b'"phase":"exchange","iteration":3}}',
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[10:28].decode())
def test_a_line_is_written_as_it_was_read(line: bytes) -> None:
    event = decode_line(line)
    assert event is not None
    assert encode_line(event) == line + b"\n"


def test_every_kind_has_its_line() -> None:
    assert {type(decode_line(line)) for line in LINES} == set(Event.__subclasses__()) == set(AnyEvent.__args__)


def test_what_a_gloo_ring_or_a_former_version_does_not_say_is_not_known() -> None:
    event = decode_line(b'{"event":"iteration","at_s":1.0,"iteration":1,"scheme":"exact","communication_s":{}}')
    assert isinstance(event, IterationEvent)
    assert (event.measured, event.bound_s, event.shares) == (None, None, {})


def test_kinds_and_fields_that_are_not_known_are_passed_over() -> None:
    assert decode_line(b'{"event":"news","at_s":{}}') is None
    assert decode_line(b"{}") is None
    assert encode_line(decode_line(b'{"event":"idle","at_s":1.0,"more":1}')) == b'{"event":"idle","at_s":1.0}\n'


@pytest.mark.parametrize(
    "line",
    [b"7", b"null", b'{"event":"iteration"}', b'{"event":"ready","at_s":1,"nodes":3}', b'{"event":"pla', b"\xff"],
)
def test_a_damaged_line_is_refused(line: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        decode_line(line)


def test_a_batch_event_needs_all_of_its_fields() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"event": "batch", "at_s": 1.0}, BatchEvent)


def test_a_kind_that_is_no_word_is_not_known() -> None:
    assert decode_line(b'{"event":[],"at_s":1.0}') is decode_line(b'{"event":{"a":1}}') is None
