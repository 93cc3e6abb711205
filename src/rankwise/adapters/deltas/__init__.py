"""Two networks → how every tensor changed: records, figures of the whole, text."""
