"""Generated faults of the spec classes: one for each class, field and rule."""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import Kvref

from kvref_conformance.running import field_faults
from kvref_conformance.running.field_faults import Judged, are_enough, chosen, try_all
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import Catch, Trial
from kvref_conformance.targets.faults import fields
from kvref_conformance.targets.faults.fields import RULES, FieldFault, generated, infos
from kvref_conformance.targets.faults.observable import changes_an_answer

SAMPLE = [
    "FullAttentionSpec__sliding_window__merge",
    "FullAttentionSpec__alignment__page",
    "MLAAttentionSpec__model_version__copy",
    "MLAAttentionSpec__tokens_per_state__page",
    "HiddenStateCacheSpec__cache_dtype_str__merge_first",
    "TQFullAttentionSpec__tq_slot_size__page",
    "SinkFullAttentionSpec__sink_len__merge_first",
    "SlidingWindowSpec__sliding_window__uniform",
    "SlidingWindowMLASpec__kv_quant_mode__merge",
    "ChunkedLocalAttentionSpec__attention_chunk_size__uniform",
    "EncoderOnlyAttentionSpec__state_content_bytes__merge_first",
    "MambaSpec__page_size_padded__copy",
]
"""A sample of all classes and rules. `tox -e fields` tries every generated fault."""


def test_there_is_a_fault_for_each_class_field_and_rule() -> None:
    faults = generated()
    assert len({fault.name for fault in faults}) == len(faults)
    assert Counter(fault.rule for fault in faults) == dict.fromkeys(RULES, len(faults) // len(RULES))
    assert {fault.spec_class for fault in faults} == set(infos())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("MambaSpec__shapes__page", True),
        ("MambaSpec__block_size__page", False),
        ("FullAttentionSpec__head_size_v__page", True),
        ("FullAttentionSpec__sliding_window__page", False),
        ("FullAttentionSpec__sliding_window__merge_first", True),
        ("FullAttentionSpec__sliding_window__uniform", False),
        ("SlidingWindowSpec__sliding_window__uniform", True),
        ("SlidingWindowSpec__head_size__uniform", False),
        ("EncoderOnlyAttentionSpec__block_size__uniform", False),
    ],
)
def test_whether_a_fault_changes_an_answer(name: str, changes: bool) -> None:
    assert changes_an_answer(chosen([name])[0]) is changes


def test_asking_leaves_the_reference_as_it_was() -> None:
    from kvref.specs import FullAttentionSpec, KVCacheSpec

    before = [dict(vars(cls)) for cls in (FullAttentionSpec, KVCacheSpec)]
    for rule in RULES:
        changes_an_answer(FieldFault("FullAttentionSpec", "head_size", rule))
    assert [dict(vars(cls)) for cls in (FullAttentionSpec, KVCacheSpec)] == before


def test_a_sample_is_caught() -> None:
    outcomes = list(try_all(chosen(SAMPLE), 0, 2, Silence()))
    assert len(outcomes) == len(SAMPLE)
    assert [each.fault.name for each in outcomes if not each.caught] == []


def test_enough() -> None:
    caught = Judged(generated()[0], Trial({"a": Catch("a", "", 1, 0.1)}))
    missed, harmless = Judged(generated()[0], Trial()), Judged(generated()[0], None)
    assert are_enough([*[caught] * 49, missed, *[harmless] * 99])
    assert not are_enough([*[caught] * 48, missed])


def test_the_command_line(kvref: Kvref, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = kvref("faults", "--fields", "--only", "MambaSpec__dtypes__[mcp]*")
    assert ran.code == 0
    assert "4 faults generated, 0 change no answer" in ran.out
    monkeypatch.setattr(field_faults, "_JUDGES", ("spec.page-positive",))
    ran = kvref("faults", "--fields", "--only", "MambaSpec__dtypes__copy")
    assert ran.code == 1
    assert "MISSED  MambaSpec__dtypes__copy" in ran.out
    assert "0 of 1" in ran.out


def test_bad_usage(kvref: Kvref) -> None:
    for options, message in (
        (("--fields", "--only", "Mamba"), "no generated fault matches 'Mamba'"),
        (("--fields", "--area", "spec"), "--fields has no --area"),
        (("--only", "*"), "--only goes with --fields"),
    ):
        ran = kvref("faults", *options)
        assert ran.code == 2
        assert message in ran.told


def test_there_is_no_other_fault() -> None:
    with pytest.raises(AttributeError, match="no generated fault is called 'MambaSpec__head_size__copy'"):
        _ = fields.MambaSpec__head_size__copy
