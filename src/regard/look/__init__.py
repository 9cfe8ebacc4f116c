"""Tracing models: recording what a model computes, saving and analyzing it, and showing it on a page."""
