"""Adapters in folders: written, read, inspected and made smaller."""
