"""Charts: rows → Altair charts, for notebooks, pages and image files alike.

Every function takes rows and returns a chart; `chart.save("chart.png")` writes PNG, SVG, PDF or
HTML, without a browser and without a network.
"""

from rankwise.errors import MissingExtraError

try:
    import altair as alt  # noqa: F401 - importing a chart says what is missing
except ImportError as error:
    raise MissingExtraError("altair", "report", "Drawing charts") from error
