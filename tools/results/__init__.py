"""The pages of results: docs/results.md and docs/results-tables.md, from committed records."""
