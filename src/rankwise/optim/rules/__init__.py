"""Rules that set layers' rates from what is measured of their weights, one per file."""
