"""Seeing a model at work: traces of it, saved, opened, asked, and shown on a page."""
