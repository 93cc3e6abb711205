"""A scatter of networks: what is missing is left out, and names are only ever data."""

import vl_convert

from rankwise.charts.scatter import network_scatter

HOSTILE = "'] || \"</script>{{datum}}"


def test_networks_are_points_and_what_is_missing_is_left_out():
    rows = [
        {"network": HOSTILE, "group": HOSTILE, "rank_one": n / 10, "q": n / 5, "accuracy": 0.5 + n}
        for n in range(4)
    ]
    rows.append({"network": "a", "group": "a", "rank_one": 0.0, "q": None, "accuracy": 0.5})
    figure = network_scatter(rows, ("q", "Q"), ("accuracy", "test accuracy"))
    picture = vl_convert.vegalite_to_svg(figure.to_json())
    assert picture.count('aria-roledescription="point"') == 4
    assert "unfoldings of rank 1" in picture
    assert "test accuracy" in picture
