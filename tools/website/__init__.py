"""The docs site: pages of docs/, generated reference and notebooks → one folder of HTML."""
