import math
import re
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from rankwise.probes.html import format_probe_html
from rankwise.probes.layer_metrics import LayerMetrics, ModeMetrics
from rankwise.probes.network_figures import compute_figures
from rankwise.weights.tensor import Status

VOID = {"br", "hr", "img"}


def probed(name, rank=4):
    figures = {"stable_rank": 0.25, "condition": 0.5, "quality": math.pi / 4}
    figures |= {"noise_fraction": 0.3, "noise_variance": 0.1}
    figures |= {"spectral_norm": 2.0, "effective_rank": 3.0, "rank_fraction": rank / 8}
    mode = ModeMetrics(mode="matrix", rows=8, columns=9, rank=rank, **figures)
    return LayerMetrics(
        name, "linear", (8, 9), "float32", 72, Status.PROBED, rank=rank, modes=(mode,), **figures
    )


def vector(name):
    return LayerMetrics(name, "other", (8,), "float32", 8, Status.VECTOR, "1-D")


class Checker(HTMLParser):
    """Collects tags and text, and sees that every tag is closed."""

    def __init__(self, document):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def render(layers, **options):
    return format_probe_html(layers, compute_figures(layers), **options)


def test_has_table_summary_skipped_and_notes():
    page = Checker(
        render([probed("conv1"), vector("conv1.bias")], title="net.pt", notes=["Note: a note"])
    )
    assert page.open == []
    assert sum(tag == "tr" for tag, _ in page.tags) == 2
    for words in ("net.pt", "conv1", "8×9", "4/8", "0.250", "0.785", "30 %", "Note: a note"):
        assert words in page.text
    assert "Directions stand out from noise in 1 of 1 layer." in page.text
    assert "1 vector (bias or norm scale): conv1.bias" in page.text


def test_bar_is_as_long_as_the_share():
    half = replace(probed("b"), stable_rank=0.125, quality=math.pi / 16)
    document = render([probed("a"), half])
    ends = re.findall(r"transparent ([0-9.]+%)", document)
    assert ends == ["100.0%", "50.0%"]  # of s; q has no bars


def test_loads_nothing_and_fixes_no_colour():
    document = render([probed("conv1")])
    assert "http" not in document
    assert "<script" not in document
    assert "background:#" not in document.replace(" ", "")
    assert "color:#" not in document.replace(" ", "")


def test_empty_layers_are_faded():
    assert 'class="rankwise-empty"' in render([probed("a", rank=0)])
    assert 'class="rankwise-empty"' not in render([probed("a")])


@given(st.text(st.characters()), st.text(st.characters()))
def test_names_cannot_become_markup(name, note):
    tags = Checker(render([probed("x"), vector("y")], title="t", notes=["n"])).tags
    page = Checker(render([probed(name), vector(name)], title="t", notes=[note]))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in tags]


def test_script_in_a_name_is_shown_as_text():
    document = render([probed("<script>alert(1)</script>")], title="<img src=x>")
    assert "<script" not in document
    assert "<img" not in document
    assert "&lt;script&gt;" in document


def test_no_layers():
    page = Checker(render([]))
    assert page.text.strip() == "The model holds no tensors."


def test_experts_are_one_row_with_their_ranges():
    layers = [
        replace(probed(f"experts.{i}.w1.weight", rank=i), stable_rank=i / 100) for i in range(9)
    ]
    page = Checker(render(layers))
    assert page.open == []
    assert sum(tag == "tr" for tag, _ in page.tags) == 2
    for words in ("experts.*.w1.weight ×9", "0.0400.000 … 0.080", "4/80/8 … 8/8"):
        assert words in page.text


def test_a_notebook_gets_a_thousand_rows():
    document = render([probed(f"layer{i}") for i in range(1500)])
    assert document.count("<tr") == 1001
    assert "… 500 more layers" in document


def test_absurd_names_stay_short():
    assert len(render([probed("n" * 100_000), vector("m" * 100_000)])) < 5000
