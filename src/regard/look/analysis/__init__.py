"""Analyses of a traced model: attention maps, single cells, head ablation and importance, the diagram, the search."""
