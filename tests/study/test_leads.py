"""The best against its runner-up, and all against one."""

import pytest

from rankwise.lab import ConfigError
from rankwise.study.findings import findings
from rankwise.study.leads import lead_text, value_text
from tests.study.small_study import filled, marked, study_in


@pytest.fixture
def found(tmp_path):
    study = study_in(tmp_path)
    return findings(filled(study, marked), study)


def test_the_best_of_each_task_meets_its_runner_up(found):
    names = [(lead.task.label, lead.first.setting, lead.second.setting) for lead in found.leads]
    assert names == [("cifar10", "RMSGD", "SGD, cosine"), ("cifar100", "RMSGD", "SGD, cosine")]


def test_equal_leads_are_not_tested_and_others_are_in_a_sentence(found):
    first, second = (lead_text(lead) for lead in found.leads)
    assert first == (
        "cifar10: RMSGD 71.23 against SGD, cosine 61.23: +10.00 points over 3 seeds; no t-test, "
        "since all 3 differences are the same, so there is no spread to judge them by."
    )
    assert second == (
        "cifar100: RMSGD 32.07 against SGD, cosine 32.00: +0.07 points [−0.31, 0.45], paired t "
        "over 3 seeds: p = 0.53: not told apart."
    )


def clear(labels, seed):
    return marked(labels, seed) + (0.001 * seed if labels["method"] == "RMSGD" else 0.0)


def test_chances_are_adjusted_over_all_tests_that_were_made(tmp_path):
    study = study_in(tmp_path)
    leads = findings(filled(study, clear), study).leads
    assert [lead.of for lead in leads] == [2, 2]
    assert leads[0].adjusted == pytest.approx(2 * leads[0].test.p)
    assert leads[1].adjusted == pytest.approx(leads[1].test.p)
    assert [lead.told_apart for lead in leads] == [True, False]
    assert lead_text(leads[0]).endswith("(by Holm < 0.001): told apart.")


def test_all_can_be_compared_with_one(tmp_path):
    study = study_in(tmp_path)
    found = findings(filled(study, clear), study, reference="RMSGD")
    assert {lead.second.setting for lead in found.leads} == {"RMSGD"}
    assert found.leads[0].test.difference == pytest.approx(-0.101)
    assert "−10.10 points" in lead_text(found.leads[0])


def test_an_unknown_row_is_refused_with_those_there_are(tmp_path):
    study = study_in(tmp_path)
    with pytest.raises(ConfigError, match=r"got 'SAM'.*'SGD, cosine'"):
        findings(filled(study), study, reference="SAM")


def test_differences_of_perplexities_keep_their_size():
    assert value_text(-0.0312345, "perplexity", sign=True) == "−0.03123"
    assert value_text(0.005, "accuracy", sign=True) == "+0.50"
