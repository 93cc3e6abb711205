"""The tables of docs/adapters.md: what they compute from records, and that the page has them."""

import json

from tools import adapter_tables as tables

WHOLE = {"task": "vit", "base": 50.0, "tuned": 60.0, "full": 1000}


def extraction(arm, score, seed=1, parameters=100, like=None):
    return {**WHOLE, "arm": arm, "seed": seed, "score": score, "parameters": parameters} | {
        "like": like
    }


def test_the_page_follows_from_the_records():
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.fill_page(page, tables.RECORDS) == page


def test_extraction_is_the_share_of_the_gain_at_the_share_of_the_size():
    lines = [extraction("auto", 59.0), extraction("auto", 58.0, seed=2)]
    head, _, row = tables.make_extraction(lines).splitlines()
    assert "ViT" in head
    assert row == "| auto | 85.0 ± 7.1 % at 10.0 % of the size |"


def test_rules_of_equal_size_are_compared_with_the_one_whose_size_they_have():
    lines = [extraction("rank 4", 58.0), extraction("auto of rank 4", 58.5, like="rank 4")]
    assert tables.make_equal_sizes(lines).splitlines()[-1] == "| auto of rank 4 | +5.0 % |"
    assert "auto of" not in tables.make_extraction(lines)


def test_a_rule_that_found_no_adapter_is_no_row():
    lines = [extraction("auto", 58.0), {"task": "vit", "seed": 1, "arm": "rank 4", "error": "…"}]
    assert "rank 4" not in tables.make_extraction(lines)


def test_resizing_is_what_is_lost_of_the_full_adapter_by_target():
    line = {"task": "gpt", "seed": 1, "arm": "rankwise", "target": 0.5, "full": 9.0, "base": 1.0}
    text = tables.make_resizing([{**line, "score": 8.75, "share": 0.49}])
    assert text.splitlines()[-1] == "| rankwise, 50 % of the bytes | 0.25 at 49 % |"


def test_draws_at_random_are_one_row_of_selection():
    line = {"task": "gpt", "base": 10.0, "parameters": 0.25}
    lines = [{**line, "arm": f"random {k}", "score": 11.0 + k} for k in range(3)]
    assert tables.make_selection(lines).splitlines()[-1] == "| random, five draws | 2.00 ± 1.00 |"


def test_no_records_are_said_to_be_none(tmp_path):
    (tmp_path / "selection.jsonl").write_text(json.dumps({"task": "vit", "held_out_rate": 1}))
    page = "".join(f"<!-- {name} -->\nold\n<!-- end -->\n" for name in tables.TABLES)
    assert tables.fill_page(page, tmp_path).count("(No records yet.)") == len(tables.TABLES)
