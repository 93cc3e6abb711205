"""Rows and figures → what people look at: tables, sentences, HTML."""
