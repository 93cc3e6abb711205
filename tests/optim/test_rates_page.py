"""docs/rates.md describes every rule, with a training by each."""

import pytest

import rankwise
from tests import ROOT
from tests.docs.blocks import read_blocks

PAGE = ROOT / "docs" / "rates.md"
RULES = ("StableRank", "AnnealedStableRank", "TempBalance", "LLR", "RelativeUpdate")


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_described(rule):
    assert f"`{rule}(" in PAGE.read_text(encoding="utf-8")
    assert hasattr(rankwise, rule)


def test_every_section_with_code_trains():
    blocks = [block for block in read_blocks(PAGE) if block.language == "python"]
    assert len({block.section for block in blocks}) == len(blocks) == 6
    assert all(".backward()" in block.text and not block.reason for block in blocks)
